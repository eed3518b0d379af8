/* The smallest sender there is: one tensor of float32, within a workspace. What of the library a
 * linker leaves in it is the size of an encoder (benchmarks/c_library_size.py). */
#include "fedsz.h"

extern const float weights[];
extern unsigned char workspace[];
extern unsigned char stream[];

size_t send_weights(size_t rows, size_t columns, size_t room, size_t workspace_size) {
    const uint64_t shape[] = {rows, columns};
    const fedsz_tensor tensor = {"weight", 6, FEDSZ_FLOAT32, shape, 2};
    fedsz_settings settings;
    fedsz_writer* writer = NULL;
    size_t size = 0;

    fedsz_settings_init(&settings);
    settings.workspace = workspace;
    settings.workspace_size = workspace_size;
    if (fedsz_writer_create(&settings, &writer, NULL) != FEDSZ_OK) return 0;
    if (fedsz_writer_add(writer, &tensor, weights, NULL, NULL, NULL, NULL) != FEDSZ_OK ||
        fedsz_writer_finish(writer, &size, NULL) != FEDSZ_OK ||
        fedsz_writer_copy(writer, stream, room, NULL) != FEDSZ_OK)
        size = 0;
    fedsz_writer_destroy(writer);
    return size;
}

const float weights[1] = {0};
unsigned char workspace[1], stream[1];

int main(void) { return (int)send_weights(1, 1, 1, 1); }

/* Codes the tensors of a file, for tests/test_c_encoder.py: the same bytes on every machine.
 *
 *     program INPUT OUTPUT
 *
 * INPUT has, for each tensor, numbers of 32 bits (effort, kind of bound, dtype, dimensions, whether
 * a residual and a base follow), the bound (float64), the shape (64 bits each), and the elements of
 * tensor, residual and base. OUTPUT has, for each, the length of a stream (64 bits), the stream,
 * and what it leaves out, if there is a residual. */
#include <stdio.h>
#include <stdlib.h>

#include "fedsz.h"

enum { EFFORT, KIND, DTYPE, DIMENSIONS, RESIDUAL, BASE, FIELDS };

static int failed(const fedsz_error* error) {
    fprintf(stderr, "%d: %s\n", (int)error->status, error->message);
    return 1;
}

static void* elements(FILE* in, size_t size) {
    void* x = malloc(size ? size : 1);
    if (x && fread(x, 1, size, in) != size) {
        free(x);
        x = NULL;
    }
    return x;
}

static int code(FILE* in, FILE* out, const uint32_t* fields) {
    uint64_t shape[FEDSZ_MAX_DIMENSIONS], length;
    fedsz_settings settings;
    fedsz_tensor tensor = {"weight", 6, FEDSZ_FLOAT32, shape, 0};
    fedsz_reference* reference = NULL;
    fedsz_writer* writer;
    fedsz_error error;
    void *x, *residual = NULL, *base = NULL, *left = NULL, *workspace, *stream;
    size_t size;

    fedsz_settings_init(&settings);
    settings.effort = fields[EFFORT];
    settings.bound_kind = (fedsz_bound_kind)fields[KIND];
    settings.lossless = FEDSZ_RAW;
    settings.threshold = 0;
    settings.feedback = (int)fields[RESIDUAL];
    tensor.dtype = (fedsz_dtype)fields[DTYPE];
    tensor.dimensions = fields[DIMENSIONS];
    if (tensor.dimensions > FEDSZ_MAX_DIMENSIONS) return 1;
    if (fread(&settings.bound, sizeof settings.bound, 1, in) != 1) return 1;
    if (fread(shape, sizeof *shape, tensor.dimensions, in) != tensor.dimensions) return 1;
    size = fedsz_tensor_size(&tensor);
    if (!(x = elements(in, size))) return 1;
    if (fields[RESIDUAL] && (!(residual = elements(in, size)) || !(left = malloc(size)))) return 1;
    if (fields[BASE]) {
        const void* data[1];
        if (!(base = elements(in, size))) return 1;
        data[0] = base;
        if (fedsz_reference_create(&tensor, data, 1, &reference, &error)) return failed(&error);
        settings.reference = reference;
    }
    settings.workspace_size = fedsz_encoder_workspace(&settings, &tensor, 1);
    if (!(settings.workspace = workspace = malloc(settings.workspace_size))) return 1;
    if (fedsz_writer_create(&settings, &writer, &error)) return failed(&error);
    if (fedsz_writer_add(writer, &tensor, x, residual, left, NULL, &error)) return failed(&error);
    if (fedsz_writer_finish(writer, &size, &error)) return failed(&error);
    if (!(stream = malloc(size))) return 1;
    if (fedsz_writer_copy(writer, stream, size, &error)) return failed(&error);
    length = size;
    if (fwrite(&length, sizeof length, 1, out) != 1 || fwrite(stream, 1, size, out) != size)
        return 1;
    size = fedsz_tensor_size(&tensor);
    if (left && fwrite(left, 1, size, out) != size) return 1;
    fedsz_writer_destroy(writer);
    fedsz_reference_destroy(reference);
    free(stream), free(workspace), free(left), free(base), free(residual), free(x);
    return 0;
}

int main(int argc, char** argv) {
    uint32_t fields[FIELDS];
    FILE *in = argc == 3 ? fopen(argv[1], "rb") : NULL, *out = in ? fopen(argv[2], "wb") : NULL;

    if (!out) return 2;
    while (fread(fields, sizeof fields, 1, in) == 1)
        if (code(in, out, fields)) return 1;
    return fclose(out) || fclose(in);
}

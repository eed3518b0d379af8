/* Codes the tensors of a file, for tests/compressors/test_c_encoder.py and tests/compressors/test_c_machines.py: the same bytes on every machine.
 *
 *     program INPUT OUTPUT
 *
 * INPUT has, for each tensor, numbers of 32 bits (effort, kind of bound, dtype, dimensions, whether
 * a residual and a base follow), the bound (float64), the shape (64 bits each), and the elements of
 * tensor, residual and base. OUTPUT has, for each, the length of a stream (64 bits), the stream,
 * and what it leaves out, if there is a residual. Each is coded within workspaces that are too small,
 * too: a sanitizer sees what goes beyond them. */
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

/* Leaves a stream in *writer; the workspace is of settings->workspace_size bytes, and lies anywhere. */
static fedsz_status write_stream(const fedsz_settings* settings, const fedsz_tensor* tensor,
                                 const void* x, const void* residual, void* left,
                                 fedsz_writer** writer, size_t* size, fedsz_error* error) {
    fedsz_status status = fedsz_writer_create(settings, writer, error);
    if (!status) status = fedsz_writer_add(*writer, tensor, x, residual, left, NULL, error);
    return status ? status : fedsz_writer_finish(*writer, size, error);
}

/* Whether workspaces that are too small are said to be. */
static int small_ones_are_refused(fedsz_settings settings, const fedsz_tensor* tensor,
                                  const void* x, const void* residual, void* left) {
    const size_t whole = settings.workspace_size;
    size_t part, size;
    for (part = 2; part <= 32; part *= 4) {
        fedsz_writer* writer = NULL;
        fedsz_error error;
        fedsz_status status;
        settings.workspace_size = whole / part;
        if (!(settings.workspace = malloc(settings.workspace_size))) return 0;
        status = write_stream(&settings, tensor, x, residual, left, &writer, &size, &error);
        fedsz_writer_destroy(writer);
        free(settings.workspace);
        if (status != FEDSZ_OK && (status != FEDSZ_ERROR_MEMORY || !error.message[0])) return 0;
    }
    return 1;
}

static int code(FILE* in, FILE* out, const uint32_t* fields) {
    uint64_t shape[FEDSZ_MAX_DIMENSIONS], length;
    fedsz_settings settings;
    fedsz_tensor tensor = {"weight", 6, FEDSZ_FLOAT32, shape, 0};
    fedsz_reference* reference = NULL;
    fedsz_writer* writer = NULL;
    fedsz_error error;
    void *x, *residual = NULL, *base = NULL, *left = NULL, *stream;
    char* workspace;
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
    if (!small_ones_are_refused(settings, &tensor, x, residual, left)) return 1;
    if (!(workspace = malloc(settings.workspace_size + 1))) return 1;
    settings.workspace = workspace + 1;
    if (write_stream(&settings, &tensor, x, residual, left, &writer, &size, &error))
        return failed(&error);
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

/* Writes the streams of a file, for tests/compressors/test_c_library.py: the same bytes on every machine.
 *
 *     program INPUT OUTPUT
 *     program
 *
 * INPUT has, for each stream, numbers of 32 bits (effort, kind of bound, lossless codec and its
 * level, rule, whether there is feedback, whether there is a reference, and the number of tensors),
 * the bound and the residual's weight (float64), and the threshold (64 bits). Then, for each tensor,
 * the length of its name, its dtype, dimensions, and whether a residual follows (32 bits each), its
 * shape (64 bits each), its name, and the elements of tensor, residual and reference. OUTPUT has, for
 * each stream, its length (64 bits), its bytes, and, with feedback, what it leaves out of each tensor
 * of floats. Each is also written within workspaces: one as large as the library asks for must be
 * enough, smaller ones may be refused, and no byte beyond them may change.
 *
 * Without arguments, it prints the library's version, and a status and a message for each mistake
 * that a caller can make. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fedsz.h"

enum { EFFORT, KIND, LOSSLESS, LEVEL, RULE, FEEDBACK, REFERENCE, TENSORS, FIELDS };
enum { NAME, DTYPE, DIMENSIONS, RESIDUAL, TENSOR_FIELDS };
#ifdef __SANITIZE_ADDRESS__
enum { GUARD = 0 }; /* the sanitizer has its own */
#else
enum { GUARD = 64 };
#endif

/* A model, what goes with each of its tensors, and what is left out of them. */
struct model {
    size_t count;
    fedsz_tensor* tensors;
    const void **data, **residuals, **base;
    void** left;
};

/* Ends the program where the library does otherwise than its header says. */
static void expect(int holds, const char* what) {
    if (holds) return;
    fprintf(stderr, "%s\n", what);
    exit(3);
}

static void* room(size_t size) {
    void* memory = calloc(size ? size : 1, 1);
    expect(memory != NULL, "no memory");
    return memory;
}

static void* taken(FILE* in, size_t size) {
    void* bytes = room(size);
    expect(fread(bytes, 1, size, in) == size, "the input ends early");
    return bytes;
}

static void put(FILE* out, const void* bytes, size_t size) {
    expect(fwrite(bytes, 1, size, out) == size, "no room for the output");
}

static struct model model_in(FILE* in, const uint32_t* fields) {
    struct model model = {0};
    size_t i;
    model.count = fields[TENSORS];
    model.tensors = room(model.count * sizeof *model.tensors);
    model.data = room(model.count * sizeof *model.data);
    model.residuals = room(model.count * sizeof *model.residuals);
    model.base = room(model.count * sizeof *model.base);
    model.left = room(model.count * sizeof *model.left);
    for (i = 0; i < model.count; ++i) {
        uint32_t* of = taken(in, TENSOR_FIELDS * sizeof *of);
        fedsz_tensor* tensor = &model.tensors[i];
        size_t size;
        tensor->name_length = of[NAME];
        tensor->dtype = (fedsz_dtype)of[DTYPE];
        tensor->dimensions = of[DIMENSIONS];
        tensor->shape = taken(in, of[DIMENSIONS] * sizeof(uint64_t));
        tensor->name = taken(in, of[NAME]);
        size = fedsz_tensor_size(tensor);
        model.data[i] = taken(in, size);
        if (of[RESIDUAL]) model.residuals[i] = taken(in, size);
        if (fields[REFERENCE]) model.base[i] = taken(in, size);
        if (fields[FEEDBACK] && tensor->dtype <= FEDSZ_BFLOAT16) model.left[i] = room(size);
        free(of);
    }
    return model;
}

static void drop(struct model model) {
    size_t i;
    for (i = 0; i < model.count; ++i) {
        free((void*)model.tensors[i].shape), free((void*)model.tensors[i].name);
        free((void*)model.data[i]), free((void*)model.residuals[i]);
        free((void*)model.base[i]), free(model.left[i]);
    }
    free(model.tensors), free(model.data), free(model.residuals), free(model.base);
    free(model.left);
}

/* Returns a stream and its size, or NULL and an error. */
static char* stream_of(const fedsz_settings* settings, const struct model* model, size_t* size,
                       fedsz_error* error) {
    fedsz_writer* writer = NULL;
    fedsz_status status = fedsz_writer_create(settings, &writer, error);
    char* stream = NULL;
    size_t i;
    for (i = 0; !status && i < model->count; ++i)
        status = fedsz_writer_add(writer, &model->tensors[i], model->data[i], model->residuals[i],
                                  model->left[i], NULL, error);
    if (!status) status = fedsz_writer_finish(writer, size, error);
    if (!status) {
        stream = room(*size);
        expect(!fedsz_writer_copy(writer, stream, *size, error), "a stream cannot be copied");
    }
    fedsz_writer_destroy(writer);
    return stream;
}

/* Writes a stream within a workspace of so many bytes, which lies anywhere. */
static void within(fedsz_settings settings, size_t size, const struct model* model,
                   const char* expected, size_t length, int is_enough) {
    char* memory = room(size + 2 * GUARD + 1);
    fedsz_error error;
    char* stream;
    size_t i, found = 0;
    memset(memory, 0x5A, size + 2 * GUARD + 1);
    settings.workspace = memory + GUARD + 1;
    settings.workspace_size = size;
    stream = stream_of(&settings, model, &found, &error);
    for (i = 0; i < GUARD; ++i)
        expect(memory[i] == 0x5A && memory[GUARD + 1 + size + i] == 0x5A,
               "a writer leaves its workspace");
    expect(stream ? found == length && !memcmp(stream, expected, length)
                  : !is_enough && error.status == FEDSZ_ERROR_MEMORY && error.message[0],
           stream ? "another stream within a workspace" : error.message);
    free(stream), free(memory);
}

static void write_one(FILE* in, FILE* out, const uint32_t* fields) {
    double* numbers = taken(in, 2 * sizeof *numbers);
    uint64_t *threshold = taken(in, sizeof *threshold), length;
    const struct model model = model_in(in, fields);
    fedsz_reference* reference = NULL;
    fedsz_settings settings;
    fedsz_error error;
    size_t i, size = 0, wanted;
    char* stream;

    fedsz_settings_init(&settings);
    settings.effort = fields[EFFORT];
    settings.bound_kind = (fedsz_bound_kind)fields[KIND];
    settings.lossless = (fedsz_lossless)fields[LOSSLESS];
    settings.lossless_level = (int)fields[LEVEL];
    settings.rule = (fedsz_rule)fields[RULE];
    settings.feedback = (int)fields[FEEDBACK];
    settings.bound = numbers[0];
    settings.residual_weight = numbers[1];
    settings.threshold = *threshold;
    if (fields[REFERENCE])
        expect(!fedsz_reference_create(model.tensors, model.base, model.count, &reference, &error),
               "no reference");
    settings.reference = reference;
    stream = stream_of(&settings, &model, &size, &error);
    expect(stream != NULL, error.message);
    wanted = fedsz_encoder_workspace(&settings, model.tensors, model.count);
    within(settings, wanted, &model, stream, size, 1);
    for (i = 2; i <= 32; i *= 4) within(settings, wanted / i, &model, stream, size, 0);
    within(settings, 100, &model, stream, size, 0);
    length = size;
    put(out, &length, sizeof length), put(out, stream, size);
    /* The last writer may have given up half-way: what it has left out is not of a stream. */
    free(stream_of(&settings, &model, &size, &error));
    for (i = 0; i < model.count; ++i)
        if (model.left[i]) put(out, model.left[i], fedsz_tensor_size(&model.tensors[i]));
    free(stream), free(numbers), free(threshold);
    fedsz_reference_destroy(reference);
    drop(model);
}

static void say(fedsz_status status, const fedsz_error* error) {
    printf("%d %s\n", (int)status, error->message);
}

/* Says what comes of adding a tensor with these settings. */
static void add(fedsz_settings settings, const char* name, const void* data) {
    const uint64_t shape[] = {1024};
    const fedsz_tensor tensor = {name, strlen(name), FEDSZ_FLOAT32, shape, 1};
    fedsz_writer* writer = NULL;
    fedsz_error error = {FEDSZ_OK, 0, ""};
    fedsz_status status = fedsz_writer_create(&settings, &writer, &error);
    if (!status) status = fedsz_writer_add(writer, &tensor, data, NULL, NULL, NULL, &error);
    say(status, &error);
    fedsz_writer_destroy(writer);
}

static void make_mistakes(void) {
    static float x[1025];
    const uint64_t shape[] = {1024};
    const fedsz_tensor other = {"y", 1, FEDSZ_FLOAT32, shape, 1};
    const void* data[] = {x};
    fedsz_settings usual, settings;
    fedsz_writer* writer = NULL;
    fedsz_reference* reference = NULL;
    fedsz_error error;

    fedsz_settings_init(&usual);
    add(usual, "x", (const char*)x + 1);
    add(usual, "x", NULL);
    add(usual, "\xed\xa0\x80", x);
    settings = usual, settings.bound = 1.5, add(settings, "x", x);
    settings = usual, settings.bound_kind = FEDSZ_BOUND_ABS, settings.bound = -1, add(settings, "x", x);
    settings = usual, settings.effort = 10, add(settings, "x", x);
    settings = usual, settings.threads = 0, add(settings, "x", x);
    say(fedsz_writer_create(NULL, &writer, &error), &error);
    expect(!fedsz_reference_create(&other, data, 1, &reference, &error), "no reference");
    settings = usual, settings.reference = reference, add(settings, "x", x);
    fedsz_reference_destroy(reference);
}

int main(int argc, char** argv) {
    uint32_t fields[FIELDS];
    FILE *in = argc == 3 ? fopen(argv[1], "rb") : NULL, *out = in ? fopen(argv[2], "wb") : NULL;

    if (argc == 1) {
        printf("%s\n", fedsz_version());
        make_mistakes();
        return 0;
    }
    if (!out) return 2;
    while (fread(fields, sizeof fields, 1, in) == 1) write_one(in, out, fields);
    return fclose(out) || fclose(in);
}

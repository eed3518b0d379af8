/* Decodes the streams of a file, for tests/compressors/test_c_library.py: whole ones and damaged ones.
 *
 *     reads INPUT OUTPUT [freed]
 *
 * INPUT has, for each stream, three lengths (64 bits each): of the stream, of one that holds the
 * model that it refers to, or 0, and what may be decoded; then these streams. OUTPUT has, for each,
 * the result of opening it and the number of its tensors (32 bits), and for each tensor its name,
 * codec, dtype, transform and bound, the result of decoding it, and its elements if that is 0. A
 * result is a status and the offset in the stream that it is about. All buffers are as long as what
 * they hold, so that a sanitizer sees what goes beyond them. With a third argument, a stream is freed
 * before it is decoded: a sanitizer must see that, too. */
#include <stdio.h>
#include <stdlib.h>

#include "fedsz.h"

enum { STREAM, MODEL, DECODED, LENGTHS };

/* Ends the program where the library does otherwise than its header says. */
static void expect(int holds, const char* what) {
    if (holds) return;
    fprintf(stderr, "%s\n", what);
    exit(3);
}

static void* room(size_t size) {
    void* memory = malloc(size ? size : 1);
    expect(memory != NULL, "no memory");
    return memory;
}

static void* taken(FILE* in, size_t size) {
    void* bytes = room(size);
    expect(fread(bytes, 1, size, in) == size, "the input ends early");
    return bytes;
}

static void put(FILE* out, size_t number) {
    const uint32_t value = (uint32_t)number;
    expect(fwrite(&value, sizeof value, 1, out) == 1, "no room for the output");
}

static void put_result(FILE* out, fedsz_status status, const fedsz_error* error) {
    put(out, status), put(out, status ? (size_t)error->offset : 0);
}

static void put_text(FILE* out, const char* text, size_t length) {
    put(out, length);
    expect(fwrite(text, 1, length, out) == length, "no room for the output");
}

/* Whether a message is one line of printable UTF-8 that says something. */
static int is_said(const fedsz_error* error) {
    const unsigned char* at = (const unsigned char*)error->message;
    if (error->status == FEDSZ_OK || !*at) return 0;
    while (*at) {
        const unsigned more = *at < 0x80 ? 0 : *at < 0xE0 ? 1 : *at < 0xF0 ? 2 : 3;
        unsigned i;
        if (*at < ' ' || *at == 0x7F || (*at >= 0x80 && *at < 0xC2) || *at > 0xF4) return 0;
        for (i = 1; i <= more; ++i)
            if ((at[i] & 0xC0) != 0x80) return 0;
        at += more + 1;
    }
    return 1;
}

/* What a caller may get wrong about one tensor. */
static void misuse(fedsz_reader* reader, size_t i, const fedsz_reference* model,
                   const fedsz_info* info) {
    const size_t item = fedsz_dtype_size(info->tensor.dtype);
    char* elements = room(info->size + 1);
    fedsz_error error;
    expect(fedsz_reader_decode(reader, i, model, elements, info->size + 1, &error) ==
                   FEDSZ_ERROR_ROOM && is_said(&error),
           "a buffer of another size is taken");
    if (info->size > 0)
        expect(fedsz_reader_decode(reader, i, model, NULL, info->size, &error) ==
                       FEDSZ_ERROR_ARGUMENT && is_said(&error),
               "elements may be NULL");
    if (info->size > 0 && item > 1)
        expect(fedsz_reader_decode(reader, i, model, elements + 1, info->size, &error) ==
                       FEDSZ_ERROR_ARGUMENT && is_said(&error),
               "elements may lie anywhere");
    free(elements);
}

static void decode(fedsz_reader* reader, size_t i, const fedsz_reference* model, FILE* out) {
    fedsz_info info;
    fedsz_error error;
    fedsz_status status;
    void* elements;
    expect(!fedsz_reader_info(reader, i, &info, &error), "a tensor of a header has no info");
    put_text(out, info.tensor.name, info.tensor.name_length);
    put_text(out, info.codec, info.codec_length);
    put(out, info.tensor.dtype), put(out, info.transform);
    expect(fwrite(&info.bound, sizeof info.bound, 1, out) == 1, "no room for the output");
    misuse(reader, i, model, &info);
    elements = room(info.size);
    status = fedsz_reader_decode(reader, i, model, elements, info.size, &error);
    expect(status == FEDSZ_OK || is_said(&error), "an error says nothing");
    put_result(out, status, &error);
    if (status == FEDSZ_OK)
        expect(fwrite(elements, 1, info.size, out) == info.size, "no room for the output");
    free(elements);
}

/* A model that a stream holds. */
struct model {
    fedsz_reference* reference;
    fedsz_reader* names;
    fedsz_tensor* tensors;
    void** data;
    size_t count;
};

static struct model model_in(const void* stream, size_t size) {
    struct model model = {0};
    size_t i;
    if (size == 0) return model;
    expect(!fedsz_reader_open(stream, size, NULL, &model.names, NULL), "no model");
    model.count = fedsz_reader_count(model.names);
    model.tensors = room(model.count * sizeof *model.tensors);
    model.data = room(model.count * sizeof *model.data);
    for (i = 0; i < model.count; ++i) {
        fedsz_info info;
        expect(!fedsz_reader_info(model.names, i, &info, NULL), "no tensor of a model");
        model.tensors[i] = info.tensor;
        model.data[i] = room(info.size);
        expect(!fedsz_reader_decode(model.names, i, NULL, model.data[i], info.size, NULL),
               "no elements");
    }
    expect(!fedsz_reference_create(model.tensors, (const void* const*)model.data, model.count,
                                   &model.reference, NULL),
           "no reference");
    return model;
}

static void drop(struct model model) {
    size_t i;
    fedsz_reference_destroy(model.reference);
    for (i = 0; i < model.count; ++i) free(model.data[i]);
    fedsz_reader_close(model.names);
    free(model.tensors), free(model.data);
}

static void read_one(FILE* in, FILE* out, const uint64_t* lengths, int freed) {
    const size_t size = (size_t)lengths[STREAM];
    char *stream = taken(in, size), *base = taken(in, (size_t)lengths[MODEL]);
    const struct model model = model_in(base, (size_t)lengths[MODEL]);
    fedsz_reader* reader;
    fedsz_limits limits;
    fedsz_error error;
    fedsz_status status;
    size_t i, count;

    fedsz_limits_init(&limits);
    limits.decoded_bytes = lengths[DECODED];
    limits.expansion = 0;
    status = fedsz_reader_open(stream, size, &limits, &reader, &error);
    expect(status == FEDSZ_OK ? reader != NULL : reader == NULL && is_said(&error),
           "an error says nothing, or leaves a reader");
    count = fedsz_reader_count(reader);
    put_result(out, status, &error);
    put(out, count);
    if (freed) free(stream);
    for (i = 0; i < count; ++i) decode(reader, i, model.reference, out);
    fedsz_reader_close(reader);
    drop(model);
    free(base);
    if (!freed) free(stream);
}

int main(int argc, char** argv) {
    uint64_t lengths[LENGTHS];
    FILE *in = argc > 2 ? fopen(argv[1], "rb") : NULL, *out = in ? fopen(argv[2], "wb") : NULL;
    fedsz_reader* reader;
    fedsz_error error;

    if (!out) return 2;
    expect(fedsz_reader_open(NULL, 9, NULL, &reader, &error) == FEDSZ_ERROR_ARGUMENT &&
               is_said(&error),
           "a stream may be NULL");
    while (fread(lengths, sizeof lengths, 1, in) == 1) read_one(in, out, lengths, argc > 3);
    return fclose(out) || fclose(in);
}

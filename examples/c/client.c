/* A client that sends what it has learnt, round by round, each time as a difference from the model
 * that the server sent, with what earlier rounds left out.
 *
 *     client MODEL ROUNDS STREAM
 *
 * MODEL is a file of float32. Each round "trains" (here: adds a little), writes STREAM, and reads
 * it back as a server would. The model that the server has then is the next round's. */
#include <fedsz.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void stop(const char* what, const fedsz_error* error) {
    fprintf(stderr, "%s: %s\n", what, error->message);
    exit(2);
}

static void* need(size_t size) {
    void* memory = calloc(size ? size : 1, 1);
    if (!memory) {
        fprintf(stderr, "there is no memory for %zu bytes\n", size);
        exit(2);
    }
    return memory;
}

static float* read_model(const char* path, size_t* count) {
    FILE* file = fopen(path, "rb");
    float* model;
    long size;

    if (!file || fseek(file, 0, SEEK_END) || (size = ftell(file)) < 0 || fseek(file, 0, SEEK_SET)) {
        fprintf(stderr, "cannot read %s\n", path);
        exit(2);
    }
    *count = (size_t)size / sizeof *model;
    model = need(*count * sizeof *model);
    if (fread(model, sizeof *model, *count, file) != *count) exit(2);
    fclose(file);
    return model;
}

/* Steps of a size that a network's might have, the same on every machine. */
static void train(float* weights, const float* model, size_t count, unsigned round) {
    unsigned state = 12345 + round;
    for (size_t i = 0; i < count; ++i) {
        state = state * 1664525u + 1013904223u;
        weights[i] = model[i] + ((float)(state >> 8) / 16777216.0f - 0.5f) * 0.01f;
    }
}

static unsigned char* encode(const fedsz_tensor* tensor, const float* weights,
                             const fedsz_reference* model, const float* residual, float* left,
                             size_t* size) {
    fedsz_settings settings;
    fedsz_writer* writer;
    fedsz_error error;
    unsigned char* stream;

    fedsz_settings_init(&settings);
    settings.bound_kind = FEDSZ_BOUND_STD;
    settings.bound = 0.5;
    settings.reference = model;
    settings.feedback = 1;
    if (fedsz_writer_create(&settings, &writer, &error)) stop("settings", &error);
    if (fedsz_writer_add(writer, tensor, weights, residual, left, NULL, &error))
        stop("encode", &error);
    if (fedsz_writer_finish(writer, size, &error)) stop("finish", &error);
    stream = need(*size);
    if (fedsz_writer_copy(writer, stream, *size, &error)) stop("copy", &error);
    fedsz_writer_destroy(writer);
    return stream;
}

static void decode(const unsigned char* stream, size_t size, const fedsz_reference* model,
                   float* weights, size_t count) {
    fedsz_reader* reader;
    fedsz_error error;
    size_t index;

    if (fedsz_reader_open(stream, size, NULL, &reader, &error)) stop("open", &error);
    index = fedsz_reader_find(reader, "weights", strlen("weights"));
    if (fedsz_reader_decode(reader, index, model, weights, count * sizeof *weights, &error))
        stop("decode", &error);
    fedsz_reader_close(reader);
}

int main(int argc, char** argv) {
    size_t count, size = 0;
    float *model, *weights, *residual, *left;
    uint64_t shape[1];
    double sum = 0;

    if (argc != 4) {
        fprintf(stderr, "usage: %s MODEL ROUNDS STREAM\n", argv[0]);
        return 2;
    }
    model = read_model(argv[1], &count);
    weights = need(count * sizeof *weights);
    residual = need(count * sizeof *residual);
    left = need(count * sizeof *left);
    shape[0] = count;

    for (unsigned round = 0, rounds = (unsigned)atoi(argv[2]); round < rounds; ++round) {
        const fedsz_tensor tensor = {"weights", strlen("weights"), FEDSZ_FLOAT32, shape, 1};
        const void* data[] = {model};
        fedsz_reference* reference;
        fedsz_error error;
        unsigned char* stream;
        FILE* file;
        float* spare;

        if (fedsz_reference_create(&tensor, data, 1, &reference, &error)) stop("model", &error);
        train(weights, model, count, round);
        stream = encode(&tensor, weights, reference, residual, left, &size);
        file = fopen(argv[3], "wb");
        if (!file || fwrite(stream, 1, size, file) != size || fclose(file)) {
            fprintf(stderr, "cannot write %s\n", argv[3]);
            return 2;
        }
        decode(stream, size, reference, weights, count);
        fedsz_reference_destroy(reference);
        free(stream);
        spare = model, model = weights, weights = spare;
        spare = residual, residual = left, left = spare;
        printf("round %u: %zu bytes, %.1f times smaller\n", round, size,
               (double)(count * sizeof *model) / (double)size);
    }
    for (size_t i = 0; i < count; ++i) sum += fabs((double)residual[i]);
    printf("left out of the last round: %.3g an element\n", count ? sum / (double)count : 0.0);
    free(model), free(weights), free(residual), free(left);
    return 0;
}

// fedsz.h: writing.
#include <new>

#include "failure.hpp"
#include "lossless.hpp"
#include "workspace.hpp"
#include "writer.hpp"

using namespace fedsz;
using namespace fedsz::library;

// A writer and, if it has a workspace, the heap that this is: which then holds the writer, too.
struct fedsz_writer {
    explicit fedsz_writer(const fedsz_settings& settings, Arena* memory)
        : arena(memory), writer(settings) {}

    Arena* arena;
    Writer writer;
};

namespace {

// Calls task(writer) where its memory is.
template <class Task>
fedsz_status with(fedsz_writer* writer, fedsz_error* error, const Task& task) {
    return guarded(error, [&] {
        require(writer, "writer");
        const InMemory here(writer->arena);
        task(writer->writer);
    });
}

}  // namespace

void fedsz_settings_init(fedsz_settings* settings) {
    if (!settings) return;
    *settings = fedsz_settings{};
    settings->bound_kind = FEDSZ_BOUND_REL;
    settings->bound = 0.01;
    settings->effort = 5;
    settings->threads = 1;
    settings->lossless = has_codec(kZstd) ? FEDSZ_ZSTD : has_codec(kZlib) ? FEDSZ_ZLIB : FEDSZ_RAW;
    settings->lossless_level = has_codec(kZstd) ? 3 : 6;
    settings->rule = FEDSZ_RULE_SHAPE;
    settings->threshold = 1024;
    settings->residual_weight = 1;
}

size_t fedsz_encoder_workspace(const fedsz_settings* settings, const fedsz_tensor* tensors,
                               size_t count) {
    size_t size = SIZE_MAX;
    guarded(nullptr, [&] {
        require(settings, "settings");
        if (count > 0) require(tensors, "tensors");
        size = workspace_of(*settings, {tensors, count}) + sizeof(Arena) + sizeof(fedsz_writer);
    });
    return size;
}

fedsz_status fedsz_writer_create(const fedsz_settings* settings, fedsz_writer** writer,
                                 fedsz_error* error) {
    return guarded(error, [&] {
        require(settings, "settings");
        require(writer, "writer");
        *writer = nullptr;
        check(*settings);
        if (!settings->workspace) {
            *writer = new fedsz_writer(*settings, nullptr);
            return;
        }
        Arena first(settings->workspace, settings->workspace_size);
        Arena* const arena = new (first.allocate(sizeof(Arena))) Arena(first);
        const InMemory here(arena);
        *writer = new (arena->allocate(sizeof(fedsz_writer))) fedsz_writer(*settings, arena);
    });
}

void fedsz_writer_destroy(fedsz_writer* writer) {
    if (!writer) return;
    if (!writer->arena) {
        delete writer;
    } else {
        const InMemory here(writer->arena);
        writer->~fedsz_writer();
    }
}

fedsz_status fedsz_writer_add(fedsz_writer* writer, const fedsz_tensor* tensor, const void* data,
                              const void* residual, void* left, fedsz_written* written,
                              fedsz_error* error) {
    return with(writer, error, [&](Writer& to) {
        require(tensor, "tensor");
        const fedsz_written done = to.add(*tensor, data, residual, left);
        if (written) *written = done;
    });
}

fedsz_status fedsz_writer_finish(fedsz_writer* writer, size_t* size, fedsz_error* error) {
    return with(writer, error, [&](Writer& to) {
        require(size, "size");
        *size = to.finish();
    });
}

fedsz_status fedsz_writer_copy(const fedsz_writer* writer, void* stream, size_t room,
                               fedsz_error* error) {
    return guarded(error, [&] {
        require(writer, "writer");
        require(stream, "stream");
        if (!writer->writer.finished()) fail(FEDSZ_ERROR_ARGUMENT, "the stream has not ended");
        size_t size = 0;
        writer->writer.pieces([&](Octets piece) { return size += piece.size(), 0; });
        if (size > room)
            fail(FEDSZ_ERROR_ROOM, "a stream of ", uint64_t(size), " bytes; there is room for ",
                 uint64_t(room));
        auto* to = static_cast<uint8_t*>(stream);
        writer->writer.pieces([&](Octets piece) {
            to = std::ranges::copy(piece, to).out;
            return 0;
        });
    });
}

int fedsz_writer_send(const fedsz_writer* writer, fedsz_sink sink, void* context) {
    if (!writer || !sink || !writer->writer.finished()) return -1;
    return writer->writer.pieces(
        [&](Octets piece) { return sink(context, piece.data(), piece.size()); });
}

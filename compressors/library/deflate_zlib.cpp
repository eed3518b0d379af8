#include <zlib.h>

#include <algorithm>
#include <limits>
#include <new>

#include "deflate.hpp"
#include "failure.hpp"

namespace fedsz::library {
namespace {

constexpr std::size_t kMostAtOnce = std::numeric_limits<uInt>::max();

void* allocate(void*, unsigned count, unsigned size) {
    try {
        return Allocator<std::uint8_t>().allocate(std::size_t(count) * size);
    } catch (...) {
        return nullptr;
    }
}
void release(void*, void* block) {
    Allocator<std::uint8_t>().deallocate(static_cast<std::uint8_t*>(block), 0);
}

int window(Wrapper wrapper) { return wrapper == Wrapper::gzip ? MAX_WBITS | 16 : MAX_WBITS; }

// zlib's state, which takes memory where the call does.
struct Stream : z_stream {
    explicit Stream(Octets bytes) : z_stream{}, left(bytes) {
        zalloc = allocate;
        zfree = release;
    }
    void start(int status) {
        if (status != Z_OK) throw std::bad_alloc();
    }
    // More input and room, as much as fits zlib's counters.
    void feed(std::span<std::uint8_t> out) {
        if (avail_in == 0) {
            next_in = const_cast<Bytef*>(left.data());
            avail_in = uInt(std::min(left.size(), kMostAtOnce));
            left = left.subspan(avail_in);
        }
        next_out = out.data();
        avail_out = uInt(std::min(out.size(), kMostAtOnce));
    }
    bool fed() const { return avail_in == 0 && left.empty(); }

    Octets left;
};

struct Deflater : Stream {
    Deflater(Octets bytes, Wrapper wrapper, int level) : Stream(bytes) {
        start(deflateInit2(this, level, Z_DEFLATED, window(wrapper), 8, Z_DEFAULT_STRATEGY));
    }
    ~Deflater() { deflateEnd(this); }
};

struct Inflater : Stream {
    Inflater(Octets bytes, Wrapper wrapper) : Stream(bytes) {
        start(inflateInit2(this, window(wrapper)));
    }
    ~Inflater() { inflateEnd(this); }
};

}  // namespace

std::uint32_t crc32(Octets bytes, std::uint32_t before) {
    uLong crc = before;
    for (; !bytes.empty(); bytes = bytes.subspan(std::min(bytes.size(), kMostAtOnce)))
        crc = ::crc32(crc, bytes.data(), uInt(std::min(bytes.size(), kMostAtOnce)));
    return std::uint32_t(crc);
}

Buffer deflated_header(Octets bytes) {
    Buffer out(compressBound(uLong(bytes.size())));
    Deflater stream(bytes, Wrapper::zlib, Z_BEST_COMPRESSION);
    stream.feed(out.span());
    if (deflate(&stream, Z_FINISH) != Z_STREAM_END)
        fail(FEDSZ_ERROR_ARGUMENT, "a header of more than 4 GiB");
    out.shrink(stream.total_out);
    return out;
}

std::optional<Buffer> deflated(Octets bytes, Wrapper wrapper, int level, std::size_t room) {
    Buffer out(room);
    Deflater stream(bytes, wrapper, level);
    std::size_t size = 0;
    // As Python does: all of it, and then the end.
    for (int flush = Z_NO_FLUSH;;) {
        stream.feed(out.span().subspan(size));
        const int status = deflate(&stream, flush);
        size = std::size_t(stream.next_out - out.data());
        if (status == Z_STREAM_END) break;
        if (size == room) return std::nullopt;
        if (stream.fed()) flush = Z_FINISH;
    }
    if (size >= room) return std::nullopt;
    out.shrink(size);
    return out;
}

bool inflate_into(Octets bytes, Wrapper wrapper, std::span<std::uint8_t> out) {
    Inflater stream(bytes, wrapper);
    std::uint8_t none;
    for (std::size_t size = 0;;) {
        const bool full = size == out.size();
        stream.feed(full ? std::span(&none, 1) : out.subspan(size));
        const auto* const from = stream.next_out;
        const int status = inflate(&stream, Z_NO_FLUSH);
        if (full && stream.next_out != from) return false;
        if (!full) size += std::size_t(stream.next_out - from);
        if (status == Z_STREAM_END) return size == out.size() && stream.fed();
        if (status == Z_MEM_ERROR) throw std::bad_alloc();
        if (status != Z_OK) return false;  // with no input left, Z_BUF_ERROR
    }
}

Vector<std::uint8_t> inflated(Octets bytes, std::uint64_t most, bool& ends) {
    Inflater stream(bytes, Wrapper::zlib);
    Vector<std::uint8_t> out;
    const std::uint64_t room = sum(most, 1);
    std::size_t size = 0;
    ends = false;
    for (;;) {
        if (size == out.size()) {
            if (size == room) break;
            out.resize(std::size_t(std::min<std::uint64_t>(
                room, std::max<std::size_t>(2 * size, 2048 + 2 * bytes.size()))));
        }
        stream.feed(std::span(out).subspan(size));
        const int status = inflate(&stream, Z_NO_FLUSH);
        size = std::size_t(stream.next_out - out.data());
        if (status == Z_STREAM_END) {
            ends = stream.fed();
            break;
        }
        if (status == Z_BUF_ERROR) break;
        if (status == Z_MEM_ERROR) throw std::bad_alloc();
        if (status != Z_OK)
            fail_at(kPrefix, FEDSZ_ERROR_CORRUPT,
                    "not a header: ", stream.msg ? stream.msg : "it needs a dictionary");
    }
    out.resize(size);
    return out;
}

}  // namespace fedsz::library

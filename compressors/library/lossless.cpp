#include "lossless.hpp"

#include <cstring>
#include <new>

#include "deflate.hpp"
#include "failure.hpp"

#ifdef FEDSZ_HAS_ZSTD
#include <zstd.h>
#include <zstd_errors.h>
#endif

namespace fedsz::library {
namespace {

#ifdef FEDSZ_HAS_ZSTD
// Frees what zstd's own functions make: it takes its memory from the heap.
struct Context {
    ZSTD_CCtx* coder = ZSTD_createCCtx();
    Context() {
        if (!coder) throw std::bad_alloc();
    }
    ~Context() { ZSTD_freeCCtx(coder); }
};

std::optional<Buffer> zstd_packed(Octets bytes, int level) {
    if (bytes.size() < 2) return std::nullopt;
    Buffer out(bytes.size() - 1);
    const Context context;
    const std::size_t size =
        ZSTD_compressCCtx(context.coder, out.data(), out.size(), bytes.data(), bytes.size(), level);
    if (ZSTD_isError(size)) {
        if (ZSTD_getErrorCode(size) == ZSTD_error_dstSize_tooSmall) return std::nullopt;
        throw std::bad_alloc();
    }
    out.shrink(size);
    return out;
}
#endif

// An integer of `Item` bytes in the order of the values from their bits, and back.
template <class Item>
Item ordered(Item bits, bool floating) {
    constexpr unsigned sign = 8 * sizeof(Item) - 1;
    constexpr Item magnitude = Item(~(Item(1) << sign));
    return floating && bits >> sign ? Item(bits ^ magnitude) : bits;
}

template <class Item>
Item load(const std::uint8_t* at) {
    Item item;
    std::memcpy(&item, at, sizeof item);
    return item;
}

template <class Item>
void difference_as(std::span<const BitPair> pairs, std::size_t n, std::uint8_t* planes) {
    constexpr unsigned sign = 8 * sizeof(Item) - 1;
    for (const BitPair& pair : pairs)
        for (std::size_t i = 0; i < pair.count; ++i, ++planes) {
            const std::size_t at = i * sizeof(Item);
            const Item step = Item(ordered(load<Item>(pair.x + at), pair.floating) -
                                   ordered(load<Item>(pair.base + at), pair.floating));
            const Item zigzag = Item(Item(step << 1) ^ (step >> sign ? Item(~Item(0)) : Item(0)));
            for (std::size_t byte = 0; byte < sizeof(Item); ++byte)
                planes[byte * n] = std::uint8_t(zigzag >> 8 * byte);
        }
}

template <class Item>
void move_as(const std::uint8_t* planes, std::size_t n, bool floating, const std::uint8_t* base,
             std::size_t count, std::uint8_t* y) {
    for (std::size_t i = 0; i < count; ++i) {
        Item zigzag = 0;
        for (std::size_t byte = 0; byte < sizeof(Item); ++byte)
            zigzag = Item(zigzag | Item(Item(planes[byte * n + i]) << 8 * byte));
        const Item step = Item(Item(zigzag >> 1) ^ (zigzag & 1 ? Item(~Item(0)) : Item(0)));
        const std::size_t at = i * sizeof(Item);
        const Item item = ordered(Item(step + ordered(load<Item>(base + at), floating)), floating);
        std::memcpy(y + at, &item, sizeof item);
    }
}

// Calls f with an unsigned integer of so many bytes.
template <class F>
void with_item(std::size_t bytes, const F& f) {
    switch (bytes) {
        case 1: return f(std::uint8_t());
        case 2: return f(std::uint16_t());
        case 4: return f(std::uint32_t());
        default: return f(std::uint64_t());
    }
}

}  // namespace

bool has_codec(std::int64_t codec) {
    switch (codec) {
        case kRaw: return true;
#ifdef FEDSZ_HAS_ZSTD
        case kZstd: return true;
#endif
#ifdef FEDSZ_HAS_ZLIB
        case kZlib:
        case kGzip: return true;
#endif
        default: return false;
    }
}

Levels levels_of(std::int64_t codec) {
    if (codec == kZstd) return {1, 22};
    return {0, codec == kRaw ? 0 : 9};
}

std::optional<Buffer> packed(Octets bytes, std::int64_t codec, int level) {
    switch (codec) {
#ifdef FEDSZ_HAS_ZSTD
        case kZstd: return zstd_packed(bytes, level);
#endif
#ifdef FEDSZ_HAS_ZLIB
        case kZlib: return deflated(bytes, Wrapper::zlib, level, bytes.size());
        case kGzip: return deflated(bytes, Wrapper::gzip, level, bytes.size());
#endif
        default: static_cast<void>(bytes), static_cast<void>(level); return std::nullopt;
    }
}

#ifdef FEDSZ_HAS_DECODER
void unpack(Octets payload, std::int64_t codec, std::span<std::uint8_t> out) {
    bool holds = false;
    switch (codec) {
        case kRaw:
            holds = payload.size() == out.size();
            if (holds && !out.empty()) std::memcpy(out.data(), payload.data(), out.size());
            break;
#ifdef FEDSZ_HAS_ZSTD
        case kZstd: {
            // One frame, no more, of a size that it states: only then is anything decoded.
            const std::size_t frame = ZSTD_findFrameCompressedSize(payload.data(), payload.size());
            std::uint8_t none;
            holds = frame == payload.size() &&
                    ZSTD_getFrameContentSize(payload.data(), payload.size()) == out.size() &&
                    ZSTD_decompress(out.empty() ? &none : out.data(), out.size(), payload.data(),
                                    payload.size()) == out.size();
            break;
        }
#endif
        case kZlib: holds = inflate_into(payload, Wrapper::zlib, out); break;
        case kGzip: holds = inflate_into(payload, Wrapper::gzip, out); break;
        default:
            fail(FEDSZ_ERROR_UNAVAILABLE, "codec '", codec_name(codec), "' is not in this library");
    }
    if (!holds)
        fail(FEDSZ_ERROR_CORRUPT, codec_name(codec), " payload is not one of ",
             std::uint64_t(out.size()), " bytes");
}
#endif

Buffer bit_difference(std::span<const BitPair> pairs, std::size_t item) {
    std::size_t n = 0;
    for (const BitPair& pair : pairs) n += pair.count;
    Buffer planes(n * item);
    with_item(item, [&]<class Item>(Item) { difference_as<Item>(pairs, n, planes.data()); });
    return planes;
}

void move_bits(Octets planes, std::size_t n, std::size_t first, std::size_t item, bool floating,
               const std::uint8_t* base, std::size_t count, std::uint8_t* y) {
    with_item(item, [&]<class Item>(Item) {
        move_as<Item>(planes.data() + first, n, floating, base, count, y);
    });
}

}  // namespace fedsz::library

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
// What zstd's own functions make and free: it takes its memory from the heap.
template <auto make, auto free>
struct Context {
    decltype(make()) state = make();
    Context() {
        if (!state) throw std::bad_alloc();
    }
    ~Context() { free(state); }
};

std::optional<Buffer> zstd_packed(Octets bytes, int level) {
    if (bytes.size() < 2) return std::nullopt;
    Buffer out(bytes.size() - 1);
    const Context<ZSTD_createCCtx, ZSTD_freeCCtx> coder;
    const std::size_t size =
        ZSTD_compressCCtx(coder.state, out.data(), out.size(), bytes.data(), bytes.size(), level);
    if (ZSTD_isError(size)) {
        if (ZSTD_getErrorCode(size) == ZSTD_error_dstSize_tooSmall) return std::nullopt;
        throw std::bad_alloc();
    }
    out.shrink(size);
    return out;
}

#ifdef FEDSZ_HAS_DECODER
bool zstd_unpacked(Octets frame, std::span<std::uint8_t> out) {
    const Context<ZSTD_createDCtx, ZSTD_freeDCtx> decoder;
    std::uint8_t none;
    const std::size_t size =
        ZSTD_decompressDCtx(decoder.state, out.empty() ? &none : out.data(), out.size(),
                            frame.data(), frame.size());
    if (ZSTD_isError(size) && ZSTD_getErrorCode(size) == ZSTD_error_memory_allocation)
        throw std::bad_alloc();
    return size == out.size();
}
#endif
#endif

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
            holds = frame == payload.size() &&
                    ZSTD_getFrameContentSize(payload.data(), payload.size()) == out.size() &&
                    zstd_unpacked(payload, out);
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

}  // namespace fedsz::library

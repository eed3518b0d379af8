// Payloads without loss: bytes by a lossless codec, or differences of their bits.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "arena.hpp"
#include "format.hpp"

namespace fedsz::library {

// Whether this build has a lossless codec.
bool has_codec(std::int64_t codec);

// The levels that a codec has.
struct Levels {
    int least, most;
};
Levels levels_of(std::int64_t codec);

// A payload of these bytes that is smaller than they are; nothing if there is none.
std::optional<Buffer> packed(Octets bytes, std::int64_t codec, int level);

#ifdef FEDSZ_HAS_DECODER
// Fills `out` with just as many bytes as a payload holds; throws Failure if it holds more or less.
void unpack(Octets payload, std::int64_t codec, std::span<std::uint8_t> out);
#endif

}  // namespace fedsz::library

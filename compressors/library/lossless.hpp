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

// A tensor's bytes beside those of the reference's.
struct BitPair {
    const std::uint8_t *x, *base;
    std::size_t count;  // of elements
    bool floating;
};

// How tensors of one item size differ from others, a plane for each byte of an item.
Buffer bit_difference(std::span<const BitPair> pairs, std::size_t item);

// Elements first, first + 1, ... of planes of n bytes each, added to those of a base.
void move_bits(Octets planes, std::size_t n, std::size_t first, std::size_t item, bool floating,
               const std::uint8_t* base, std::size_t count, std::uint8_t* y);

}  // namespace fedsz::library

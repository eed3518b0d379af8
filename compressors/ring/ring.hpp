// Tokens in the ring of integers modulo 2^bits, in exactly `bits` bits each: token i is bits i * bits
// and up of the packed bytes, the lowest bit of a byte first. Bits behind the last token are 0. T is
// std::uint8_t, std::uint16_t or std::uint32_t, and has as many bits as a token at least.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace fedsz::ring {

inline constexpr unsigned kMostBits = 32;

// The bytes that `count` tokens take. Throws std::invalid_argument unless 1 <= bits <= kMostBits and
// a memory can have so many.
std::size_t packed_size(std::size_t count, unsigned bits);

// Packs tokens, which must be below 2^bits. Throws std::invalid_argument for one that is not, with
// `out` filled all the same, and for an `out` of another size than theirs.
template <class T>
void pack(std::span<const T> tokens, unsigned bits, std::span<std::byte> out);

// Adds packed tokens to as many sums, modulo 2^bits. Throws CorruptPayload, with nothing changed, for
// bytes of another size than theirs or with a bit behind the last token.
template <class T>
void unpack_add(std::span<const std::byte> packed, unsigned bits, std::span<T> sums);

}  // namespace fedsz::ring

// The fields of a payload that both directions share.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "szx.hpp"

namespace fedsz::szx {

static_assert(std::endian::native == std::endian::little);

// Modes, the first byte.
inline constexpr std::byte stored{0};
inline constexpr std::byte coded{1};

inline constexpr unsigned constant_bits = 0;
inline constexpr unsigned sign_and_exponent = 9;  // bits that are always kept
inline constexpr unsigned exact_bits = 32;

inline constexpr std::size_t codes_length = block_length / 4;  // bytes of two-bit codes

using Words = std::array<std::uint32_t, block_length>;

inline std::size_t blocks_of(std::size_t n) { return n / block_length + (n % block_length != 0); }
inline std::size_t bitmap_length(std::size_t blocks) { return blocks / 8 + (blocks % 8 != 0); }
inline std::size_t bytes_for(unsigned bits) { return (bits + 7) / 8; }

}  // namespace fedsz::szx

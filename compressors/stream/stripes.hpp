// XXH3's loop over long input, once for each instruction set; all of them compute the same.
#pragma once

#include <cstddef>
#include <cstdint>

#include "levels.hpp"

namespace fedsz::stream {

inline constexpr std::size_t kStripe = 64, kSecretSize = 192;
inline constexpr std::size_t kPerBlock = (kSecretSize - kStripe) / 8;  // stripes
inline constexpr std::uint64_t kSmallPrime = 0x9E3779B1;

extern const std::uint8_t kSecret[kSecretSize];

// Adds stripes to eight lanes; `at` of the first block have been. Returns how many of the last have.
using Consume = std::size_t (*)(std::uint64_t* lanes, const std::uint8_t* stripes,
                                std::size_t count, std::size_t at);

struct Kernels {
    const char* name;
    Consume consume;
};

struct Built {
    static const Kernels baseline, avx2, avx512;
};

}  // namespace fedsz::stream

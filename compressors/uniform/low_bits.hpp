// What of a code lies below its token.
#pragma once

#include <algorithm>
#include <span>

#include "bytes.hpp"
#include "kernels.hpp"

namespace fedsz::uniform {

// Low bits stand in planes of kPlane elements, the lowest bit first.
inline std::size_t low_bytes(std::size_t n, unsigned shift) {
    return (n + kPlane - 1) / kPlane * (kPlane / 8) * shift;
}

// Puts those of elements at, at + 1, ... into their planes; at is a multiple of kPlane.
inline void pack_low(const Kernels& kernels, std::span<const std::uint16_t> low, unsigned shift,
                     std::size_t at, std::span<std::uint8_t> bytes) {
    const unsigned below = std::min(shift, 8u), above = shift - below;
    std::uint8_t* planes = &bytes[at / kPlane * (kPlane / 8) * shift];
    for (std::size_t i = 0; i < low.size(); i += kPlane, planes += kPlane / 8 * shift) {
        std::uint8_t halves[2][kPlane]{};
        for (std::size_t j = 0; j < std::min(kPlane, low.size() - i); ++j) {
            halves[0][j] = std::uint8_t(low[i + j]);
            halves[1][j] = std::uint8_t(low[i + j] >> 8);
        }
        kernels.pack(halves[0], below, planes);
        kernels.pack(halves[1], above, planes + kPlane / 8 * below);
    }
}

// The other way round.
inline void unpack_low(const Kernels& kernels, Bytes planes, unsigned shift, std::size_t at,
                       std::size_t n, std::uint16_t* low) {
    const std::uint8_t* p = planes.data() + at / kPlane * (kPlane / 8) * shift;
    const unsigned below = std::min(shift, 8u), above = shift - below;
    std::uint8_t halves[2][kPlane];
    for (std::size_t i = 0; i < n; i += kPlane) {
        kernels.unpack(p, below, halves[0]);
        kernels.unpack(p + kPlane / 8 * below, above, halves[1]);
        p += kPlane / 8 * shift;
        const std::size_t count = std::min(kPlane, n - i);
        for (std::size_t j = 0; j < count; ++j)
            low[i + j] = std::uint16_t(halves[0][j] | halves[1][j] << 8);
    }
}

}  // namespace fedsz::uniform

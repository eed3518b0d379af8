// Differences of bits (docs/format.md): exact, whatever the values.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fedsz::stream {

// Elements of one dtype, of 1, 2, 4 or 8 bytes, wherever they lie.
struct Items {
    std::size_t bytes, count;
    bool floating;
};

// How x differs from a base: byte k of element i goes to planes[k * plane + i].
void bit_difference(Items items, const std::uint8_t* x, const std::uint8_t* base,
                    std::uint8_t* planes, std::size_t plane);

// The elements that differ so from a base.
void move_bits(Items items, const std::uint8_t* planes, std::size_t plane,
               const std::uint8_t* base, std::uint8_t* y);

}  // namespace fedsz::stream

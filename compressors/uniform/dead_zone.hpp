// Where on the grid an element lies. With a dead zone, numbers are rounded towards zero, so that the
// zone of zero is twice as wide as others; what has left it is decoded to a point beyond its number,
// where most such elements lie (Sullivan, 1996).
#pragma once

#include <cstdint>

namespace fedsz::uniform {

inline constexpr unsigned kOffsetBits = 8, kMostOffset = 128;  // half a step, in units of 2^-8

// In an anonymous namespace for the same reason as the loops: see loops.hpp.
namespace {

// What number k stands for, in steps. Away from zero, all numbers lie beyond the offset, which is
// 1/2 at most: clamped to it, they are the offset with their sign, and zero is zero.
template <bool Dead, class C>
C in_steps(std::int32_t k, C offset) {
    const C number = C(k);
    if constexpr (!Dead) return number;
    const C least = number < offset ? number : offset;
    return number + (least > -offset ? least : -offset);
}

}  // namespace
}  // namespace fedsz::uniform

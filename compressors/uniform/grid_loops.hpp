// The loops between elements and numbers on the grid; part of loops.hpp, as which they are compiled.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "dead_zone.hpp"
#include "kernels.hpp"
#include "operand_loops.hpp"

namespace fedsz::uniform {
namespace {

// Adding 1.5 * 2^(digits - 1) rounds a float to an integer, ties to even, and leaves the integer in
// the low bits of the sum: no conversion instruction, whose results differ between machines.
template <class C>
struct Rounder;
template <>
struct Rounder<float> {
    static constexpr float magic = 0x1.8p23f;
    static std::int32_t round(float x) {
        return std::int32_t(std::bit_cast<std::uint32_t>(x + magic) -
                            std::bit_cast<std::uint32_t>(magic));
    }
    static std::uint32_t magnitude(float x) { return std::bit_cast<std::uint32_t>(x) & 0x7FFFFFFF; }
};
template <>
struct Rounder<double> {
    static constexpr double magic = 0x1.8p52;
    static std::int32_t round(double x) {
        return std::int32_t(std::bit_cast<std::int64_t>(x + magic));
    }
    static std::uint64_t magnitude(double x) {
        return std::bit_cast<std::uint64_t>(x) & 0x7FFFFFFFFFFFFFFF;
    }
};

// The number of what is so many steps from zero. Half a step less, rounded to nearest, is rounded
// down: which of two it is where it lies on the border of both makes no difference to the bound.
template <bool Dead, class C>
std::int32_t number_at(C steps) {
    if constexpr (!Dead) return Rounder<C>::round(steps);
    const std::int32_t k = Rounder<C>::round((steps < 0 ? -steps : steps) - C(0.5));
    return steps < 0 ? std::int32_t(0 - std::uint32_t(k)) : k;
}

template <class E>
Beyond beyond(const typename E::Stored* x, std::size_t n, typename E::Compute inverse) {
    using C = typename E::Compute;
    constexpr auto most = C(1 << 21);  // the rounding of larger ones is worse than any guess
    constexpr auto unit = C(1 << kOffsetBits);
    std::uint32_t count = 0, units = 0;  // of at most 2^12 times 2^8
    for (std::size_t i = 0; i < n; ++i) {
        const C v = E::widen(x[i]);
        const C magnitude = (v < 0 ? -v : v) * inverse;
        const C steps = magnitude < most ? magnitude : C(0);  // a NaN compares false
        const std::int32_t k = Rounder<C>::round(steps - C(0.5));
        const std::int32_t rest = Rounder<C>::round((steps - C(k)) * unit);
        const std::uint32_t outside = std::uint32_t(0 - k) >> 31;  // 1 if k > 0
        count += outside;
        units += std::uint32_t(rest) * outside;
    }
    return {count, units};
}

template <class E, bool Dead, bool Predicted, bool Wide>
typename E::Bits quantise_as(const typename E::Stored* x, std::size_t n,
                             const Grid<typename E::Compute>& grid, const std::int32_t* prediction,
                             std::uint8_t* __restrict token, std::uint16_t* __restrict low) {
    using C = typename E::Compute;
    using Bits = typename E::Bits;
    const C step = grid.step, inverse = grid.inverse, offset = grid.offset;
    const std::uint32_t base = std::uint32_t(grid.base);
    const unsigned shift = Wide ? grid.shift : 0;
    const std::uint32_t mask = (1u << shift) - 1;
    Bits worst = 0;
    std::uint32_t beyond = 0;
    for (std::size_t i = 0; i < n; ++i) {
        const C v = E::widen(x[i]);
        const std::int32_t k = number_at<Dead>(v * inverse);
        const C y = E::widen(E::narrow(in_steps<Dead>(k, offset) * step));
        const Bits error = Rounder<C>::magnitude(v - y);
        worst = error > worst ? error : worst;
        const std::uint32_t code =
            std::uint32_t(k) - base - (Predicted ? std::uint32_t(prediction[i]) : 0);
        beyond |= code >> (8 + shift);
        token[i] = std::uint8_t(code >> shift);
        if constexpr (Wide) low[i] = std::uint16_t(code & mask);
    }
    return beyond ? std::numeric_limits<Bits>::max() : worst;
}

template <class E>
typename E::Bits quantise(const typename E::Stored* x, std::size_t n,
                          const Grid<typename E::Compute>& grid, const std::int32_t* prediction,
                          std::uint8_t* token, std::uint16_t* low) {
    constexpr decltype(&quantise<E>) ways[2][2][2] = {
        {{quantise_as<E, false, false, false>, quantise_as<E, false, false, true>},
         {quantise_as<E, false, true, false>, quantise_as<E, false, true, true>}},
        {{quantise_as<E, true, false, false>, quantise_as<E, true, false, true>},
         {quantise_as<E, true, true, false>, quantise_as<E, true, true, true>}}};
    return ways[grid.dead][prediction != nullptr][grid.shift > 0](x, n, grid, prediction, token,
                                                                  low);
}

template <class E, bool Dead, bool Predicted, bool Wide>
void dequantise_as(const std::uint8_t* token, const std::uint16_t* low,
                   const std::int32_t* prediction, std::size_t n,
                   const Grid<typename E::Compute>& grid, typename E::Stored* __restrict y) {
    using C = typename E::Compute;
    const C step = grid.step, offset = grid.offset;
    const std::uint32_t base = std::uint32_t(grid.base);
    const unsigned shift = Wide ? grid.shift : 0;
    for (std::size_t i = 0; i < n; ++i) {
        std::uint32_t k = base + (std::uint32_t(token[i]) << shift);
        if constexpr (Wide) k += low[i];
        if constexpr (Predicted) k += std::uint32_t(prediction[i]);
        y[i] = E::narrow(in_steps<Dead>(std::int32_t(k), offset) * step);
    }
}

template <class E>
void dequantise(const std::uint8_t* token, const std::uint16_t* low, const std::int32_t* prediction,
                std::size_t n, const Grid<typename E::Compute>& grid, typename E::Stored* y) {
    constexpr decltype(&dequantise<E>) ways[2][2][2] = {
        {{dequantise_as<E, false, false, false>, dequantise_as<E, false, false, true>},
         {dequantise_as<E, false, true, false>, dequantise_as<E, false, true, true>}},
        {{dequantise_as<E, true, false, false>, dequantise_as<E, true, false, true>},
         {dequantise_as<E, true, true, false>, dequantise_as<E, true, true, true>}}};
    ways[grid.offset > 0][prediction != nullptr][grid.shift > 0](token, low, prediction, n, grid, y);
}

template <class E, bool Dead>
void accumulate_tokens_as(const std::uint8_t* token, std::size_t n,
                          const Grid<typename E::Compute>& grid, typename E::Compute weight,
                          typename E::Compute* __restrict sum) {
    using C = typename E::Compute;
    const C step = grid.step, offset = grid.offset;
    const std::uint32_t base = std::uint32_t(grid.base);
    for (std::size_t i = 0; i < n; ++i) {
        const auto k = std::int32_t(base + token[i]);
        sum[i] += weight * E::widen(E::narrow(in_steps<Dead>(k, offset) * step));
    }
}

template <class E>
void accumulate_tokens(const std::uint8_t* token, std::size_t n,
                       const Grid<typename E::Compute>& grid, typename E::Compute weight,
                       typename E::Compute* sum) {
    grid.offset > 0 ? accumulate_tokens_as<E, true>(token, n, grid, weight, sum)
                    : accumulate_tokens_as<E, false>(token, n, grid, weight, sum);
}

template <class E, bool Dead>
double energy_of_tokens_as(const std::uint8_t* token, std::size_t n,
                           const Grid<typename E::Compute>& grid) {
    using C = typename E::Compute;
    // Small numbers, as they nearly always are, are squared and added up as integers: twice as fast.
    constexpr std::size_t piece = 1024;
    constexpr std::int32_t small = 1023;
    const double offset = double(grid.offset);
    if (grid.base >= -small && grid.base <= small - 255) {
        const auto low = std::int16_t(grid.base);
        double sum = 0;
        for (std::size_t at = 0; at < n; at += piece) {
            std::int32_t squares = 0;  // at most 2^10 times 2^20
            std::int32_t magnitudes = 0, others = 0;
            for (std::size_t i = at; i < (at + piece < n ? at + piece : n); ++i) {
                const auto k = std::int16_t(low + token[i]);
                squares += std::int32_t(k) * k;
                if constexpr (Dead) {
                    magnitudes += k < 0 ? -k : k;
                    others += k != 0;
                }
            }
            sum += squares;
            // (|k| + offset)^2 of all that are not zero.
            if constexpr (Dead) sum += offset * (2.0 * magnitudes + offset * others);
        }
        return sum;
    }
    const std::uint32_t base = std::uint32_t(grid.base);
    return sum_of_squares<C>(n, [&](std::size_t i) {
        return in_steps<Dead>(std::int32_t(base + token[i]), grid.offset);
    });
}

template <class E>
double energy_of_tokens(const std::uint8_t* token, std::size_t n,
                        const Grid<typename E::Compute>& grid) {
    return grid.offset > 0 ? energy_of_tokens_as<E, true>(token, n, grid)
                           : energy_of_tokens_as<E, false>(token, n, grid);
}

}  // namespace
}  // namespace fedsz::uniform

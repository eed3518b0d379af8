// The loops that round to the grid and back; part of loops.hpp, as which they are compiled.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels.hpp"

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

// What numbers on the grid elements are rounded to, and how far off that is.
template <class E>
class Rounded {
    using C = typename E::Compute;
    using Bits = typename E::Bits;

public:
    // `low`: how many bits of a number its token leaves.
    explicit Rounded(const Grid<C>& grid, unsigned low = 0)
        : step_(grid.step),
          inverse_(grid.inverse),
          base_(std::uint32_t(grid.base)),
          bits_(8 + low) {}

    struct Number {
        std::uint32_t code;    // of the token and the bits below
        typename E::Stored y;  // what it stands for
    };
    Number take(typename E::Stored x, std::uint32_t prediction) {
        const C v = E::widen(x);
        const std::int32_t k = Rounder<C>::round(v * inverse_);
        const auto y = E::narrow(C(k) * step_);
        const Bits error = Rounder<C>::magnitude(v - E::widen(y));
        worst_ = error > worst_ ? error : worst_;
        const std::uint32_t code = std::uint32_t(k) - base_ - prediction;
        beyond_ |= code >> bits_;
        return {code, y};
    }

    // The largest error; more than any if a number lay beyond all tokens.
    Bits worst() const { return beyond_ ? std::numeric_limits<Bits>::max() : worst_; }

private:
    C step_, inverse_;
    std::uint32_t base_;
    unsigned bits_;
    Bits worst_ = 0;
    std::uint32_t beyond_ = 0;
};

template <class E, bool Predicted, bool Wide>
typename E::Bits quantise_as(const typename E::Stored* x, std::size_t n,
                             const Grid<typename E::Compute>& grid, const std::int32_t* prediction,
                             std::uint8_t* __restrict token, std::uint16_t* __restrict low) {
    const unsigned shift = Wide ? grid.shift : 0;
    const std::uint32_t mask = (1u << shift) - 1;
    Rounded<E> rounded(grid, shift);
    for (std::size_t i = 0; i < n; ++i) {
        const auto [code, y] = rounded.take(x[i], Predicted ? std::uint32_t(prediction[i]) : 0);
        token[i] = std::uint8_t(code >> shift);
        if constexpr (Wide) low[i] = std::uint16_t(code & mask);
    }
    return rounded.worst();
}

template <class E>
typename E::Bits quantise(const typename E::Stored* x, std::size_t n,
                          const Grid<typename E::Compute>& grid, const std::int32_t* prediction,
                          std::uint8_t* token, std::uint16_t* low) {
    if (prediction)
        return grid.shift ? quantise_as<E, true, true>(x, n, grid, prediction, token, low)
                          : quantise_as<E, true, false>(x, n, grid, prediction, token, low);
    return grid.shift ? quantise_as<E, false, true>(x, n, grid, prediction, token, low)
                      : quantise_as<E, false, false>(x, n, grid, prediction, token, low);
}

template <class E, bool Predicted, bool Wide>
void dequantise_as(const std::uint8_t* token, const std::uint16_t* low,
                   const std::int32_t* prediction, std::size_t n,
                   const Grid<typename E::Compute>& grid, typename E::Stored* __restrict y) {
    using C = typename E::Compute;
    const C step = grid.step;
    const std::uint32_t base = std::uint32_t(grid.base);
    const unsigned shift = Wide ? grid.shift : 0;
    for (std::size_t i = 0; i < n; ++i) {
        std::uint32_t k = base + (std::uint32_t(token[i]) << shift);
        if constexpr (Wide) k += low[i];
        if constexpr (Predicted) k += std::uint32_t(prediction[i]);
        y[i] = E::narrow(C(std::int32_t(k)) * step);
    }
}

template <class E>
void dequantise(const std::uint8_t* token, const std::uint16_t* low, const std::int32_t* prediction,
                std::size_t n, const Grid<typename E::Compute>& grid, typename E::Stored* y) {
    if (prediction) {
        if (grid.shift) return dequantise_as<E, true, true>(token, low, prediction, n, grid, y);
        return dequantise_as<E, true, false>(token, low, prediction, n, grid, y);
    }
    if (grid.shift) return dequantise_as<E, false, true>(token, low, prediction, n, grid, y);
    return dequantise_as<E, false, false>(token, low, prediction, n, grid, y);
}

template <class E>
void tokens_onto(const std::uint8_t* token, std::size_t n, const Grid<typename E::Compute>& grid,
                 const typename E::Stored* base, typename E::Stored* __restrict y) {
    using C = typename E::Compute;
    const C step = grid.step;
    const std::uint32_t lowest = std::uint32_t(grid.base);
    for (std::size_t i = 0; i < n; ++i) {
        const auto difference = E::narrow(C(std::int32_t(lowest + token[i])) * step);
        y[i] = E::narrow(E::widen(difference) + E::widen(base[i]));
    }
}

}  // namespace
}  // namespace fedsz::uniform

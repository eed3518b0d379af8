// The loops over what is coded, with its residual and its base; part of loops.hpp, as which they
// are compiled. What is coded stays in registers: a block of it would take the cache from what is
// read, and memory would wait while the block is computed with.
#pragma once

#include <cstddef>
#include <limits>

#include "grid_loops.hpp"
#include "kernels.hpp"

namespace fedsz::uniform {
namespace {

// x + weight * residual, rounded twice.
template <class E, bool Residual>
typename E::Stored meant(const Operands<E>& of, std::size_t i) {
    if constexpr (Residual)
        return E::narrow(E::widen(of.x[i]) + of.weight * E::widen(of.residual[i]));
    return of.x[i];
}

template <class E, bool Base, bool Residual>
typename E::Stored coded(const Operands<E>& of, std::size_t i) {
    const auto x = meant<E, Residual>(of, i);
    return Base ? E::narrow(E::widen(x) - E::widen(of.base[i])) : x;
}

// What is left out of an element of which y is what has been coded.
template <class E, bool Base, bool Residual>
typename E::Stored left_of(const Operands<E>& of, std::size_t i, typename E::Stored y) {
    const auto decoded = Base ? E::narrow(E::widen(of.base[i]) + E::widen(y)) : y;
    return E::narrow(E::widen(meant<E, Residual>(of, i)) - E::widen(decoded));
}

// Calls loop.operator()<Base, Residual>(), by which of them there are.
template <class E, class Loop>
auto with(const Operands<E>& of, const Loop& loop) {
    if (of.base)
        return of.residual ? loop.template operator()<true, true>()
                           : loop.template operator()<true, false>();
    return of.residual ? loop.template operator()<false, true>()
                       : loop.template operator()<false, false>();
}

template <class E, bool Base, bool Residual>
void combine_as(const Operands<E>& of, std::size_t n, typename E::Stored* __restrict values) {
    for (std::size_t i = 0; i < n; ++i) values[i] = coded<E, Base, Residual>(of, i);
}

template <class E>
void combine(const Operands<E>& of, std::size_t n, typename E::Stored* values) {
    with(of, [&]<bool Base, bool Residual>() { combine_as<E, Base, Residual>(of, n, values); });
}

template <class E, bool Base, bool Residual>
void left_out_as(const Operands<E>& of, const typename E::Stored* y, std::size_t n,
                 typename E::Stored* __restrict left) {
    for (std::size_t i = 0; i < n; ++i) left[i] = left_of<E, Base, Residual>(of, i, y[i]);
}

template <class E>
void left_out(const Operands<E>& of, const typename E::Stored* y, std::size_t n,
              typename E::Stored* left) {
    with(of, [&]<bool Base, bool Residual>() { left_out_as<E, Base, Residual>(of, y, n, left); });
}

// Smallest and largest key so far.
template <class E>
struct Ends {
    using Key = typename E::Key;
    Key low = std::numeric_limits<Key>::max(), high = std::numeric_limits<Key>::min();

    void take(typename E::Stored x) {
        const Key k = key<E>(x);
        low = k < low ? k : low;
        high = k > high ? k : high;
    }
    Extent<E> extent() const { return {low, high}; }
};

template <class E, bool Base, bool Residual>
Extent<E> extent_as(const Operands<E>& of, std::size_t n) {
    Ends<E> ends;
    for (std::size_t i = 0; i < n; ++i) ends.take(coded<E, Base, Residual>(of, i));
    return ends.extent();
}

template <class E>
Extent<E> extent(const Operands<E>& of, std::size_t n) {
    return with(of,
                [&]<bool Base, bool Residual>() { return extent_as<E, Base, Residual>(of, n); });
}

template <class E, bool Base, bool Residual>
Extent<E> magnitudes_as(const Operands<E>& of, std::size_t n, typename E::Compute scale,
                        std::uint32_t* __restrict columns, std::uint64_t* row) {
    using C = typename E::Compute;
    Ends<E> ends;
    std::uint32_t sum = 0;  // of at most 2^12 times 2^18
    for (std::size_t i = 0; i < n; ++i) {
        const auto x = coded<E, Base, Residual>(of, i);
        ends.take(x);
        const C a = (E::widen(x) < 0 ? -E::widen(x) : E::widen(x)) * scale;
        // Integers, so that sums come out the same in any order; a NaN compares false.
        const auto m = std::uint32_t(std::int32_t(a < C(kMagnitudeLimit) ? a : C(kMagnitudeLimit)));
        columns[i] += m;
        sum += m;
    }
    *row += sum;
    return ends.extent();
}

template <class E>
Extent<E> magnitudes(const Operands<E>& of, std::size_t n, typename E::Compute scale,
                     std::uint32_t* columns, std::uint64_t* row) {
    return with(of, [&]<bool Base, bool Residual>() {
        return magnitudes_as<E, Base, Residual>(of, n, scale, columns, row);
    });
}

template <class E, bool Base, bool Residual, bool Left>
typename E::Bits tokens_as(const Operands<E>& of, std::size_t n,
                           const Grid<typename E::Compute>& grid, std::uint8_t* __restrict token,
                           typename E::Stored* __restrict left) {
    const Operands<E> here = of;  // no store to a token can change it, as far as compilers know
    Rounded<E> rounded(grid);
    for (std::size_t i = 0; i < n; ++i) {
        const auto x = coded<E, Base, Residual>(here, i);
        const auto [code, y] = rounded.take(x, 0);
        token[i] = std::uint8_t(code);
        if constexpr (Left) left[i] = left_of<E, Base, Residual>(here, i, y);
    }
    return rounded.worst();
}

template <class E>
typename E::Bits tokens(const Operands<E>& of, std::size_t n, const Grid<typename E::Compute>& grid,
                        std::uint8_t* token, typename E::Stored* left) {
    return with(of, [&]<bool Base, bool Residual>() {
        return left ? tokens_as<E, Base, Residual, true>(of, n, grid, token, left)
                    : tokens_as<E, Base, Residual, false>(of, n, grid, token, left);
    });
}

}  // namespace
}  // namespace fedsz::uniform

// The loops over what is coded, with its residual and its base, and over what it leaves out; part of
// loops.hpp, as which they are compiled.
#pragma once

#include <cstddef>

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
void combine_as(const Operands<E>& of, std::size_t n, typename E::Stored* __restrict values) {
    for (std::size_t i = 0; i < n; ++i) {
        const auto x = meant<E, Residual>(of, i);
        values[i] = Base ? E::narrow(E::widen(x) - E::widen(of.base[i])) : x;
    }
}

template <class E>
void combine(const Operands<E>& of, std::size_t n, typename E::Stored* values) {
    if (of.base)
        return of.residual ? combine_as<E, true, true>(of, n, values)
                           : combine_as<E, true, false>(of, n, values);
    return of.residual ? combine_as<E, false, true>(of, n, values)
                       : combine_as<E, false, false>(of, n, values);
}

template <class E, bool Base, bool Residual>
void left_out_as(const Operands<E>& of, const typename E::Stored* y, std::size_t n,
                 typename E::Stored* __restrict left) {
    for (std::size_t i = 0; i < n; ++i) {
        const auto decoded = Base ? E::narrow(E::widen(of.base[i]) + E::widen(y[i])) : y[i];
        left[i] = E::narrow(E::widen(meant<E, Residual>(of, i)) - E::widen(decoded));
    }
}

// The sum of value(i)^2 over i < n, in an order that vectors follow.
template <class C, class Value>
double sum_of_squares(std::size_t n, const Value& value) {
    constexpr std::size_t lanes = 32;
    C squares[lanes] = {};
    std::size_t i = 0;
    for (; i + lanes <= n; i += lanes)
        for (std::size_t lane = 0; lane < lanes; ++lane) {
            const C v = value(i + lane);
            squares[lane] += v * v;
        }
    for (std::size_t lane = 0; i < n; ++i, ++lane) squares[lane] += value(i) * value(i);
    double sum = 0;
    for (const C square : squares) sum += double(square);
    return sum;
}

template <class E>
double energy(const typename E::Stored* y, const typename E::Stored* base, std::size_t n) {
    using C = typename E::Compute;
    if (base)
        return sum_of_squares<C>(
            n, [&](std::size_t i) { return C(E::widen(y[i]) - E::widen(base[i])); });
    return sum_of_squares<C>(n, [&](std::size_t i) { return C(E::widen(y[i])); });
}

template <class E>
double left_out(const Operands<E>& of, const typename E::Stored* y, std::size_t n,
                typename E::Stored* left) {
    if (of.base)
        of.residual ? left_out_as<E, true, true>(of, y, n, left)
                    : left_out_as<E, true, false>(of, y, n, left);
    else
        of.residual ? left_out_as<E, false, true>(of, y, n, left)
                    : left_out_as<E, false, false>(of, y, n, left);
    return energy<E>(left, nullptr, n);
}

}  // namespace
}  // namespace fedsz::uniform

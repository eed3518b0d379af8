// The loops over what is coded, with its residual and its base; part of loops.hpp, as which they are
// compiled.
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

}  // namespace
}  // namespace fedsz::uniform

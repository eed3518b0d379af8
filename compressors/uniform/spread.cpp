#include <algorithm>
#include <cmath>
#include <numeric>
#include <type_traits>

#include "elements.hpp"
#include "memory.hpp"
#include "parallel.hpp"
#include "payload.hpp"
#include "survey.hpp"

namespace fedsz::uniform {
namespace {

constexpr std::size_t kPiece = 1 << 16;  // elements that a thread takes at a time; as compare.cpp
constexpr std::size_t kChunk = 1 << 17;  // elements whose sum for a deviation is one

// Halves, down to 128 elements in eight sums: what rounding takes grows with the logarithm of n.
// It is numpy's order, in which streams that exist have got their bounds.
double pairwise(const double* x, std::size_t n) {
    if (n > 128) {
        const std::size_t half = n / 2 - n / 2 % 8;
        return pairwise(x, half) + pairwise(x + half, n - half);
    }
    double sums[8] = {};
    std::size_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (std::size_t j = 0; j < 8; ++j) sums[j] += x[i + j];
    double sum =
        ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
    for (; i < n; ++i) sum += x[i];
    return sum;
}

template <class E>
bool all_finite(const Extent<E>& extent) {
    return extent.low > ~E::infinity && extent.high < E::infinity;
}

// Puts the finite ones of up to kChunk elements into `finite`, and returns how many they are.
template <class E>
std::size_t take_finite(const typename E::Stored* x, std::size_t n,
                        [[maybe_unused]] const Kernels& kernels, double* finite) {
    std::size_t count = 0;
    for (std::size_t at = 0; at < n; at += kBlock) {
        const std::size_t end = std::min(n, at + kBlock);
#ifndef __OPTIMIZE_SIZE__
        if (all_finite<E>(kernels.of<E>().extent({x + at}, end - at))) {
            double* const to = finite + count;
            for (std::size_t i = at; i < end; ++i) to[i - at] = double(E::widen(x[i]));
            count += end - at;
            continue;
        }
#endif
        for (std::size_t i = at; i < end; ++i)
            if (is_finite<E>(x[i])) finite[count++] = double(E::widen(x[i]));
    }
    return count;
}

template <class E>
double value_range_as(const typename E::Stored* x, std::size_t n, const Kernels& kernels) {
    Extent<E> all = nothing<E>;
    for (std::size_t at = 0; at < n; at += kBlock) {
        const std::size_t end = std::min(n, at + kBlock);
        if (const auto some = kernels.of<E>().extent({x + at}, end - at); all_finite<E>(some)) {
            all = joined(all, some);
            continue;
        }
        for (std::size_t i = at; i < end; ++i)
            if (is_finite<E>(x[i])) all = joined(all, Extent<E>{key<E>(x[i]), key<E>(x[i])});
    }
    if (all.low > all.high) return 0;
    const Limits limits = limits_of(all);
    return limits.high - limits.low;
}

template <class E>
double standard_deviation_as(const typename E::Stored* x, std::size_t n, const Kernels& kernels) {
    double total = 0, squares = 0, count = 0, mean = 0;
    Vector<double> finite(std::min(n, kChunk));
    for (const bool distances : {false, true}) {
        for (std::size_t at = 0; at < n; at += kChunk) {
            const std::size_t length = std::min(kChunk, n - at);
            const std::size_t some = take_finite<E>(x + at, length, kernels, finite.data());
            if (!distances) {
                count += double(some);
                total += pairwise(finite.data(), some);
                continue;
            }
            for (std::size_t i = 0; i < some; ++i) {
                finite[i] -= mean;
                finite[i] *= finite[i];
            }
            squares += pairwise(finite.data(), some);
        }
        if (count == 0) return 0;
        mean = total / count;
    }
    return std::sqrt(squares / count);
}

// Of up to kBlock elements, where two that are the same do not differ, finite or not.
template <class E>
double energy_of_others(const Operands<E>& of, std::size_t n, const Kernels& kernels) {
    using C = typename E::Compute;
    using Wide = std::conditional_t<std::is_same_v<C, double>, Float64, Float32>;
    C difference[kBlock];
    for (std::size_t i = 0; i < n; ++i) {
        const C x = E::widen(of.x[i]), base = E::widen(of.base[i]);
        const bool same = x == base || (x != x && base != base);
        difference[i] = same ? C(0) : x - base;
    }
    return kernels.of<Wide>().energy(difference, nullptr, n);
}

template <class E>
double energy_as(const Operands<E>& operands, std::size_t n, bool masked,
                 const Settings& settings) {
    const Kernels& kernels = kernels_of(settings);
    const Elements<E> elements(operands, kernels);
    Vector<double> energies((n + kPiece - 1) / kPiece);
    parallel_for(energies.size(), settings.threads, [&](unsigned, std::size_t i) {
        const std::size_t end = std::min(n, (i + 1) * kPiece);
        for (std::size_t at = i * kPiece; at < end; at += kBlock) {
            const std::size_t some = std::min(kBlock, end - at);
            const Operands<E> here = elements.operands(at, some);
            double squares = kernels.of<E>().energy(here.x, here.base, some);
            if (masked && here.base && !std::isfinite(squares))
                squares = energy_of_others(here, some, kernels);
            energies[i] += squares;
        }
    });
    return std::accumulate(energies.begin(), energies.end(), 0.0);
}

}  // namespace

double value_range_of_elements(Dtype dtype, const void* x, std::size_t n,
                               const Settings& settings) {
    return visit(dtype, [&]<class E>(E) {
        const auto* elements = static_cast<const typename E::Stored*>(x);
        return value_range_as<E>(elements, n, kernels_of(settings));
    });
}

double standard_deviation_of_elements(Dtype dtype, const void* x, std::size_t n,
                                      const Settings& settings) {
    return visit(dtype, [&]<class E>(E) {
        const auto* elements = static_cast<const typename E::Stored*>(x);
        return standard_deviation_as<E>(elements, n, kernels_of(settings));
    });
}

double energy_of_elements(Dtype dtype, const void* x, const void* base, std::size_t n, bool masked,
                          const Settings& settings) {
    return visit(dtype, [&]<class E>(E) {
        return energy_as<E>(operands_of<E>(x, base, {}), n, masked, settings);
    });
}

}  // namespace fedsz::uniform

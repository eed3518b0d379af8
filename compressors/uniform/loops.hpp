// The loops that compilers vectorise by themselves, compiled once for each instruction set. They
// are in an anonymous namespace: a copy compiled for AVX-512 must never be linked into the
// baseline.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "grid_loops.hpp"
#include "kernels.hpp"
#include "look_loops.hpp"
#include "operand_loops.hpp"
#include "quad_loops.hpp"

namespace fedsz::uniform {
namespace {

template <class E>
void scaled(const typename E::Stored* x, std::size_t n, typename E::Compute scale, float most,
            float* __restrict y) {
    for (std::size_t i = 0; i < n; ++i) {
        const float v = float(E::widen(x[i]) * scale);
        y[i] = (v < 0 ? -v : v) <= most ? v : 0.0f;
    }
}

template <class E>
void accumulate(const typename E::Stored* y, std::size_t n, typename E::Compute weight,
                typename E::Compute* __restrict sum) {
    for (std::size_t i = 0; i < n; ++i) sum[i] += weight * E::widen(y[i]);
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
void accumulate_tokens(const std::uint8_t* token, std::size_t n,
                       const Grid<typename E::Compute>& grid, typename E::Compute weight,
                       typename E::Compute* __restrict sum) {
    using C = typename E::Compute;
    const C step = grid.step;
    const std::uint32_t base = std::uint32_t(grid.base);
    for (std::size_t i = 0; i < n; ++i)
        sum[i] += weight * E::widen(E::narrow(C(std::int32_t(base + token[i])) * step));
}

template <class E>
double energy_of_tokens(const std::uint8_t* token, std::size_t n,
                        const Grid<typename E::Compute>& grid) {
    using C = typename E::Compute;
    // Small numbers, as they nearly always are, are squared and added up as integers: twice as fast.
    constexpr std::size_t piece = 1024;
    constexpr std::int32_t small = 1023;
    if (grid.base >= -small && grid.base <= small - 255) {
        const auto low = std::int16_t(grid.base);
        double sum = 0;
        for (std::size_t at = 0; at < n; at += piece) {
            std::int32_t squares = 0;  // at most 2^10 times 2^20
            for (std::size_t i = at; i < (at + piece < n ? at + piece : n); ++i) {
                const auto k = std::int16_t(low + token[i]);
                squares += std::int32_t(k) * k;
            }
            sum += squares;
        }
        return sum;
    }
    const std::uint32_t base = std::uint32_t(grid.base);
    return sum_of_squares<C>(n, [&](std::size_t i) { return C(std::int32_t(base + token[i])); });
}

void predict(const std::int8_t* left, unsigned rank, const std::int8_t* right, std::size_t stride,
             std::size_t n, unsigned scale, unsigned parts, std::int32_t* __restrict numbers,
             std::uint8_t* __restrict fractions) {
    for (std::size_t i = 0; i < n; ++i) numbers[i] = 0;
    unsigned j = 0;
    for (; j + 4 <= rank; j += 4) {
        const std::int8_t* r = right + j * stride;
        const std::int16_t l[4] = {left[j], left[j + 1], left[j + 2], left[j + 3]};
        for (std::size_t i = 0; i < n; ++i) {
            // Two products of at most 127 * 127 fit 16 bits.
            const auto a = std::int16_t(l[0] * r[i] + l[1] * r[stride + i]);
            const auto b = std::int16_t(l[2] * r[2 * stride + i] + l[3] * r[3 * stride + i]);
            numbers[i] += std::int32_t(a) + std::int32_t(b);
        }
    }
    for (; j < rank; ++j)
        for (std::size_t i = 0; i < n; ++i)
            numbers[i] += std::int16_t(std::int16_t(left[j]) * right[j * stride + i]);
    const std::int32_t half = scale ? 1 << (scale - 1) : 0, mask = (1 << scale) - 1;
    for (std::size_t i = 0; i < n; ++i) {
        const std::int32_t s = numbers[i] + half;
        fractions[i] = std::uint8_t((std::uint32_t(s & mask) * parts) >> scale);
        numbers[i] = s >> scale;
    }
}

void project(const float* x, std::size_t n, const float* vectors, float* sums) {
    float sum[kSketch] = {};
    for (std::size_t i = 0; i < n; ++i)
        for (std::size_t j = 0; j < kSketch; ++j) sum[j] += x[i] * vectors[i * kSketch + j];
    for (std::size_t j = 0; j < kSketch; ++j) sums[j] = sum[j];
}

void spread(const float* x, std::size_t n, const float* __restrict vector, float* __restrict sums) {
    for (std::size_t i = 0; i < n; ++i)
        for (std::size_t j = 0; j < kSketch; ++j) sums[i * kSketch + j] += x[i] * vector[j];
}

// An encoder divides a state, as a float, by a frequency: times kBelowOne / frequency, rounded down.
// That is the integer quotient, which is below 2^21, or one less: the three roundings, of 2^-24 each,
// cannot carry it above, nor take away a whole.
constexpr float kBelowOne = 1 - 0x3p-24f;

// What decoding groups of symbols has changed of a run, but for its states.
inline void advance(RunState& run, const std::uint8_t* words, std::size_t groups) {
    run.words = words;
    run.symbols += groups * kLanes;
    if (run.contexts) run.contexts += groups * kLanes;
    run.ahead.advance(groups * kLanes);
}

// Calls decode.operator()<Count, Contexts>() for so many runs, with or without contexts.
template <class Decode>
void dispatch(const RunState* runs, unsigned count, const Decode& decode) {
    const auto counted = [&]<unsigned Count>() {
        if (runs->contexts)
            decode.template operator()<Count, true>();
        else
            decode.template operator()<Count, false>();
    };
    if (count == 1) return counted.template operator()<1>();
    if (count == 2) return counted.template operator()<2>();
    if (count == 3) return counted.template operator()<3>();
    counted.template operator()<kSideBySide>();
}

template <class E>
constexpr ElementKernels<E> element_kernels() {
    return {combine<E>,  left_out<E>,   extent<E>, magnitudes<E>, look<E>, tokens<E>,
            quantise<E>, dequantise<E>, scaled<E>, accumulate<E>, energy<E>,
            tokens_onto<E>, accumulate_tokens<E>, energy_of_tokens<E>, add_quads<E>};
}

// All loops of an instruction set: those written for it, and those that its compiler makes of
// these.
constexpr Kernels all_kernels(const char* name, decltype(Kernels::decode) decode,
                              decltype(Kernels::encode) encode, decltype(Kernels::pack) pack,
                              decltype(Kernels::unpack) unpack,
                              decltype(Kernels::others) others_of_quads,
                              decltype(ElementKernels<Float32>::add_quads) add_quads_of_float32) {
    Kernels all{name,
            decode,
            encode,
            pack,
            unpack,
            from_digits,
            to_digits,
            others_of_quads,
            count_digits,
            predict,
            project,
            spread,
            element_kernels<Float32>(),
#ifdef FEDSZ_FLOAT32_ONLY
            {}, {}, {}};
#else
            element_kernels<Float64>(),
            element_kernels<Float16>(),
            element_kernels<BFloat16>()};
#endif
    all.float32.add_quads = add_quads_of_float32;
    return all;
}

}  // namespace
}  // namespace fedsz::uniform

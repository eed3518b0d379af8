// The loops that compilers vectorise by themselves, compiled once for each instruction set. They
// are in an anonymous namespace: a copy compiled for AVX-512 must never be linked into the
// baseline.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels.hpp"
#include "operand_loops.hpp"
#include "quad_loops.hpp"

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

template <class E>
Extent<E> extent(const typename E::Stored* x, std::size_t n) {
    using Key = typename E::Key;
    Key low = std::numeric_limits<Key>::max(), high = std::numeric_limits<Key>::min();
    for (std::size_t i = 0; i < n; ++i) {
        const Key k = key<E>(x[i]);
        low = k < low ? k : low;
        high = k > high ? k : high;
    }
    return {low, high};
}

template <class E>
Extent<E> magnitudes(const typename E::Stored* x, std::size_t n, typename E::Compute scale,
                     std::uint32_t* columns, std::uint64_t* row) {
    using C = typename E::Compute;
    using Key = typename E::Key;
    Key low = std::numeric_limits<Key>::max(), high = std::numeric_limits<Key>::min();
    std::uint32_t sum = 0;  // of at most 2^12 times 2^18
    for (std::size_t i = 0; i < n; ++i) {
        const Key k = key<E>(x[i]);
        low = k < low ? k : low;
        high = k > high ? k : high;
        const C a = (E::widen(x[i]) < 0 ? -E::widen(x[i]) : E::widen(x[i])) * scale;
        // Integers, so that sums come out the same in any order; a NaN compares false.
        const auto m = std::uint32_t(std::int32_t(a < C(kMagnitudeLimit) ? a : C(kMagnitudeLimit)));
        columns[i] += m;
        sum += m;
    }
    *row += sum;
    return {low, high};
}

template <class E>
Extents<E> extents(const typename E::Stored* x, const typename E::Stored* base, std::size_t n,
                   typename E::Stored* __restrict difference) {
    using Key = typename E::Key;
    constexpr Key most = std::numeric_limits<Key>::max(), least = std::numeric_limits<Key>::min();
    Key low = most, high = least, nearest = most, furthest = least;
    for (std::size_t i = 0; i < n; ++i) {
        const auto d = E::narrow(E::widen(x[i]) - E::widen(base[i]));
        const Key own = key<E>(x[i]), apart = key<E>(d);
        low = own < low ? own : low;
        high = own > high ? own : high;
        nearest = apart < nearest ? apart : nearest;
        furthest = apart > furthest ? apart : furthest;
        difference[i] = d;
    }
    return {{low, high}, {nearest, furthest}};
}

template <class E>
Sums sums(const typename E::Stored* x, std::size_t n, double shift) {
    constexpr std::size_t lanes = 16;
    double sum[lanes] = {}, squares[lanes] = {};
    const auto add = [&](std::size_t i, std::size_t lane) {
        const double v = double(E::widen(x[i])) - shift;
        sum[lane] += v;
        squares[lane] += v * v;
    };
    std::size_t i = 0;
    for (; i + lanes <= n; i += lanes)
        for (std::size_t lane = 0; lane < lanes; ++lane) add(i + lane, lane);
    for (std::size_t lane = 0; i < n; ++i, ++lane) add(i, lane);
    for (std::size_t lane = 1; lane < lanes; ++lane) {
        sum[0] += sum[lane];
        squares[0] += squares[lane];
    }
    return {sum[0], squares[0]};
}

template <class E, bool Predicted, bool Wide>
typename E::Bits quantise_as(const typename E::Stored* x, std::size_t n,
                             const Grid<typename E::Compute>& grid, const std::int32_t* prediction,
                             std::uint8_t* __restrict token, std::uint16_t* __restrict low) {
    using C = typename E::Compute;
    using Bits = typename E::Bits;
    const C step = grid.step, inverse = grid.inverse;
    const std::uint32_t base = std::uint32_t(grid.base);
    const unsigned shift = Wide ? grid.shift : 0;
    const std::uint32_t mask = (1u << shift) - 1;
    Bits worst = 0;
    std::uint32_t beyond = 0;
    for (std::size_t i = 0; i < n; ++i) {
        const C v = E::widen(x[i]);
        const std::int32_t k = Rounder<C>::round(v * inverse);
        const C y = E::widen(E::narrow(C(k) * step));
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
    return {combine<E>,  left_out<E>,   extent<E>, magnitudes<E>, extents<E>, sums<E>,
            quantise<E>, dequantise<E>, scaled<E>, accumulate<E>, energy<E>,
            accumulate_tokens<E>, energy_of_tokens<E>, add_quads<E>};
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

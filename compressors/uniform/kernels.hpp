// The inner loops, once for each instruction set; all of them compute the same, bit for bit.
#pragma once

#include <cstddef>
#include <cstdint>

#include "element.hpp"
#include "levels.hpp"

namespace fedsz::uniform {

// Numbers that a loop may read behind those it is given.
inline constexpr std::size_t kReadable = 16;

// The rANS coder (Duda, arXiv:1311.2540) keeps each state in [2^15, 2^31) and moves 16 bits at a
// time. Symbol i of a run belongs to state i mod kLanes, so that a vector unit can step many at
// once.
inline constexpr unsigned kLanes = 32;
inline constexpr std::uint32_t kStateLow = 1u << 15;

// Loops work on blocks of so many elements, which stay in the first-level cache.
inline constexpr std::size_t kBlock = 4096;

// Bit planes are laid out for so many elements at a time.
inline constexpr std::size_t kPlane = 128;

// Vectors that a matrix is multiplied with at a time.
inline constexpr std::size_t kSketch = 32;

// One symbol in a decoder's table: what its state becomes, and what it stands for.
// Bits 0-7: the symbol; 8-19: slot minus the first slot of the symbol; 20-31: frequency.
using Slot = std::uint32_t;

// One symbol in an encoder's table. Bits 0-15: frequency; 16-31: first slot.
using Range = std::uint32_t;

// The grid y = k * step, and the window of it that tokens cover: k = base + (token << shift) + low.
template <class C>
struct Grid {
    C step;
    C inverse;
    C limit;  // an error whose computed size is above this may be above the bound
    std::int32_t base;
    unsigned shift;
};

// Smallest and largest value as keys, integers in the order of the values (see `key`).
template <class E>
struct Extent {
    typename E::Key low, high;
};

// Of numbers less the first of them, and of their squares. Their mean is no further from it than
// they are from each other.
struct Sums {
    double first, sum, squares;
};

// What is asked of two arrays beside their extents.
struct Asked {
    bool deviation = false, energies = false;
};

// What is found; sums are added up in a fixed order, and are 0 if not asked for.
template <class E>
struct Seen {
    Extent<E> x, difference;  // of x with its residual, and of that above its base
    Sums sums;                // of x - base
    double step, meant;       // the sums of squares of x - base, and with the residual
};

// What is coded: x + weight * residual - base, rounded at each step; no base or residual if null.
template <class E>
struct Operands {
    using T = typename E::Stored;

    const T* x;
    const T* base = nullptr;
    const T* residual = nullptr;
    typename E::Compute weight = 1;

    bool plain() const { return !base && !residual; }
    Operands from(std::size_t i) const {
        return {x + i, base ? base + i : nullptr, residual ? residual + i : nullptr, weight};
    }
};

template <class E>
struct ElementKernels {
    using T = typename E::Stored;
    using C = typename E::Compute;

    // Computes n values of what is coded.
    void (*combine)(const Operands<E>& operands, std::size_t n, T* values);

    // left = x + weight * residual - (base + y), where y is what has been coded, rounded at each
    // step.
    void (*left_out)(const Operands<E>& operands, const T* y, std::size_t n, T* left);

    // The extent of n values of what is coded; NaN and infinities lie outside all finite values.
    Extent<E> (*extent)(const Operands<E>& operands, std::size_t n);

    // As `extent` for n <= kBlock, and adds min(|value| * scale, kMagnitudeLimit), rounded down, to
    // columns[i] and to *row.
    Extent<E> (*magnitudes)(const Operands<E>& operands, std::size_t n, C scale,
                            std::uint32_t* columns, std::uint64_t* row);

    // What is asked of n > 0 elements with a base.
    Seen<E> (*look)(const Operands<E>& operands, std::size_t n, Asked asked);

    // As `quantise` of what is coded, on a grid of shift 0 and without a prediction. Unless `left`
    // is null, what is left out goes there; of no use where the result is above the limit.
    typename E::Bits (*tokens)(const Operands<E>& operands, std::size_t n, const Grid<C>& grid,
                               std::uint8_t* token, T* left);

    // Codes n <= kBlock elements. Returns the largest computed error as an integer that orders like
    // it; above the bits of grid.limit if any element is not finite, too far off or out of window.
    // prediction: what to take from each k, or null; low: what is below the token, if shift > 0.
    typename E::Bits (*quantise)(const T* x, std::size_t n, const Grid<C>& grid,
                                 const std::int32_t* prediction, std::uint8_t* token,
                                 std::uint16_t* low);

    // y = k * step for n <= kBlock elements.
    void (*dequantise)(const std::uint8_t* token, const std::uint16_t* low,
                       const std::int32_t* prediction, std::size_t n, const Grid<C>& grid, T* y);

    // y[i] = x[i] * scale as float32, 0 where that is above `most` in magnitude or not a number.
    void (*scaled)(const T* x, std::size_t n, C scale, float most, float* y);

    // sum += weight * y
    void (*accumulate)(const T* y, std::size_t n, C weight, C* sum);

    // The sum of (y - base)^2, or of y^2 where base is null, added up in a fixed order.
    double (*energy)(const T* y, const T* base, std::size_t n);

    // For elements that are tokens alone, with no low bits and no prediction: y = base + k * step,
    // rounded at each step; as dequantise and accumulate; and the energy over step^2.
    void (*tokens_onto)(const std::uint8_t* token, std::size_t n, const Grid<C>& grid,
                        const T* base, T* y);
    void (*accumulate_tokens)(const std::uint8_t* token, std::size_t n, const Grid<C>& grid,
                              C weight, C* sum);
    double (*energy_of_tokens)(const std::uint8_t* token, std::size_t n, const Grid<C>& grid);

    // sum[i] += values[digit], where digit is that of quads[i] at `shift`, or the next of `others`
    // if it is 3. Returns what of `others` is left; kReadable more than there are must be readable.
    // ahead: sums that are next, which a cache may fetch.
    const C* (*add_quads)(const std::uint8_t* quads, std::size_t n, unsigned shift, const C* values,
                          const C* others, C* sum, const C* ahead);
};

inline constexpr std::uint32_t kMagnitudeLimit = 1u << 18;

// What is read and written once symbols have been decoded, so many bytes of each array for a symbol.
// A cache may fetch it meanwhile: decoding waits for its states, and not for memory.
struct Ahead {
    const char *first = nullptr, *second = nullptr;  // or null
    std::size_t bytes = 0;

    // Asks for what belongs to n symbols behind the first `at`.
    void fetch(std::size_t at, std::size_t n) const {
        if (!first) return;
        for (std::size_t byte = at * bytes; byte < (at + n) * bytes; byte += 64) {
            __builtin_prefetch(first + byte);
            if (second) __builtin_prefetch(second + byte);
        }
    }
    void advance(std::size_t symbols) {
        if (first) first += symbols * bytes;
        if (second) second += symbols * bytes;
    }
};

// A run that is being decoded: its kLanes states, the words that follow (of 16 bits each, at any
// address), the table of each symbol, and where symbols go.
struct RunState {
    std::uint32_t* states;
    const std::uint8_t *words, *end;
    const std::uint8_t* contexts;
    std::uint8_t* symbols;
    Ahead ahead;

    // How many groups of kLanes symbols have all the words that they can take.
    std::size_t safe_groups() const { return std::size_t(end - words) / (2 * kLanes); }
};

// Runs that are decoded at a time: a state waits for its last step, so that others have time for
// theirs.
inline constexpr unsigned kSideBySide = 4;

struct Kernels {
    const char* name;

    // Steps the states of 1 to kSideBySide runs through `groups` groups of kLanes symbols each,
    // which must be safe; contexts of all may be null, for table 0. Words, contexts and symbols
    // move on.
    void (*decode)(RunState* runs, unsigned count, const Slot* slots, unsigned bits,
                   std::size_t groups);

    // The inverse, backwards: words are written below `words`, which ends at the first written.
    // There must be room for kLanes words more than are written.
    void (*encode)(std::uint32_t* states, std::uint16_t*& words, const Range* ranges, unsigned bits,
                   const std::uint8_t* contexts, const std::uint8_t* symbols, std::size_t groups);

    // Bit planes of kPlane bytes: bit b of element i becomes bit i % 8 of planes[16 b + i / 8].
    void (*pack)(const std::uint8_t* values, unsigned width, std::uint8_t* planes);
    void (*unpack)(const std::uint8_t* planes, unsigned width, std::uint8_t* values);

    // tokens[i] = what the digit of quads[i] at `shift` makes of `usual`; 3 leaves it.
    void (*from_digits)(const std::uint8_t* quads, std::size_t n, unsigned shift,
                        std::uint8_t usual, std::uint8_t* tokens);
    // The other way round: puts digits at `shift`, where quads have none yet.
    void (*to_digits)(const std::uint8_t* tokens, std::size_t n, unsigned shift, std::uint8_t usual,
                      std::uint8_t* quads);
    // Bit i of what is returned: whether the digit of quads[i] at `shift` is 3, for i < n <= 64.
    std::uint64_t (*others)(const std::uint8_t* quads, std::size_t n, unsigned shift);
    // How many digits of n quads are 1, 2 and 3.
    void (*count_digits)(const std::uint8_t* quads, std::size_t n, std::uint64_t counts[3]);

    // For i < n: s = sum over j < rank of left[j] right[j * stride + i], at most 2^20 in magnitude;
    // numbers[i] = s 2^-scale rounded, halves upwards; fractions[i] = in which of `parts` equal
    // parts between two halves it lies.
    void (*predict)(const std::int8_t* left, unsigned rank, const std::int8_t* right,
                    std::size_t stride, std::size_t n, unsigned scale, unsigned parts,
                    std::int32_t* numbers, std::uint8_t* fractions);

    // sums[kSketch] = sum over i < n of x[i] vectors[i, :], and
    void (*project)(const float* x, std::size_t n, const float* vectors, float* sums);
    // sums[i, :] += x[i] vector[:]: the products of a matrix with kSketch vectors, row by row.
    void (*spread)(const float* x, std::size_t n, const float* vector, float* sums);

    ElementKernels<Float32> float32;
    ElementKernels<Float64> float64;
    ElementKernels<Float16> float16;
    ElementKernels<BFloat16> bfloat16;

    template <class E>
    const ElementKernels<E>& of() const;
};

struct Built {
    static const Kernels baseline, avx2, avx512;
};

template <>
inline const ElementKernels<Float32>& Kernels::of() const {
    return float32;
}
template <>
inline const ElementKernels<Float64>& Kernels::of() const {
    return float64;
}
template <>
inline const ElementKernels<Float16>& Kernels::of() const {
    return float16;
}
template <>
inline const ElementKernels<BFloat16>& Kernels::of() const {
    return bfloat16;
}

}  // namespace fedsz::uniform

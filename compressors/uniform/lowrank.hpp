// A prediction of low rank: the update of a fully connected layer is a sum of few outer products.
#pragma once

#include <cstdint>
#include <span>

#include "bytes.hpp"
#include "contexts.hpp"
#include "kernels.hpp"
#include "memory.hpp"

namespace fedsz::uniform {

inline constexpr unsigned kMaxRank = 64;
inline constexpr unsigned kMaxScale = 20;

// Element (r, c) is predicted at p = 2^-scale times the sum over j of left[r, j] right[j, c], in
// steps; in integers, so that all machines predict the same.
struct Factors {
    unsigned rank = 0, scale = 0;
    std::size_t rows = 0, columns = 0;
    Vector<std::int8_t> left;   // [rows, rank]
    Vector<std::int8_t> right;  // [rank, columns]

    // Of elements at, at + 1, ... at most kBlock of them: p rounded to an integer, and in which
    // fifth of the way between two halves it lies (0 to kFractions - 1).
    void predict(const Kernels& kernels, std::size_t at, std::span<std::int32_t> numbers,
                 std::uint8_t* fractions) const;
};

// The bits that writing them takes, by estimate.
double factor_bits(const Factors& factors);

// The factors as runs of symbols, the left ones and the right ones, each component with a table.
void write(const Factors& factors, const Kernels& kernels, Writer& writer);
Factors read_factors(Reader& reader, const Kernels& kernels, const Geometry& geometry);

}  // namespace fedsz::uniform

// The product of matrices, once for each instruction set; all of them compute the same, bit for bit.
#pragma once

#include <cstddef>

#include "levels.hpp"

namespace fedsz::eigen {

// Columns of a product are computed so many at a time.
inline constexpr std::size_t kPad = 32;

inline constexpr std::size_t padded(std::size_t n) { return (n + kPad - 1) / kPad * kPad; }

// A matrix by the distances of its elements.
template <class T>
struct Matrix {
    T* at;
    std::size_t row, column;
};

// c = a b, of n x depth and depth x m elements, where m is a multiple of kPad and columns of b and c
// lie side by side. Each element is the sum over 0, 1, ... depth - 1, one after the other.
template <class T>
using Multiply = void (*)(Matrix<const T> a, const T* b, std::size_t b_row, T* c, std::size_t c_row,
                          std::size_t n, std::size_t depth, std::size_t m);

struct Kernels {
    const char* name;
    Multiply<float> single;
    Multiply<double> twice;

    template <class T>
    Multiply<T> multiply() const {
        if constexpr (sizeof(T) == sizeof(float))
            return single;
        else
            return twice;
    }
};

struct Built {
    static const Kernels baseline, avx2, avx512;
};

}  // namespace fedsz::eigen

// Compiled once for each instruction set, which FEDSZ_VARIANT names; see CMakeLists.txt.

#include <cstring>

#include "kernels.hpp"

namespace fedsz::eigen {
namespace {

#if defined(__AVX512F__)
constexpr std::size_t kBytes = 64, kRows = 8;
#elif defined(__AVX2__)
constexpr std::size_t kBytes = 32, kRows = 6;
#else
constexpr std::size_t kBytes = 16, kRows = 4;
#endif

// So many rows of c by two vectors of columns, which stay in registers.
template <class T, std::size_t Rows>
void tile(Matrix<const T> a, const T* b, std::size_t b_row, T* c, std::size_t c_row,
          std::size_t depth) {
    typedef T Vector __attribute__((vector_size(kBytes)));
    constexpr std::size_t lanes = kBytes / sizeof(T);
    Vector sums[Rows][2] = {};
    for (std::size_t k = 0; k < depth; ++k) {
        Vector left, right;
        std::memcpy(&left, b + k * b_row, kBytes);
        std::memcpy(&right, b + k * b_row + lanes, kBytes);
        const T* column = a.at + k * a.column;
        for (std::size_t i = 0; i < Rows; ++i) {
            sums[i][0] += left * column[i * a.row];
            sums[i][1] += right * column[i * a.row];
        }
    }
    for (std::size_t i = 0; i < Rows; ++i) std::memcpy(c + i * c_row, sums[i], 2 * kBytes);
}

template <class T, std::size_t Rows>
void some_rows(Matrix<const T> a, const T* b, std::size_t b_row, T* c, std::size_t c_row,
               std::size_t n, std::size_t depth) {
    if (n == Rows) return tile<T, Rows>(a, b, b_row, c, c_row, depth);
    if constexpr (Rows > 1) some_rows<T, Rows - 1>(a, b, b_row, c, c_row, n, depth);
}

template <class T>
void multiply(Matrix<const T> a, const T* b, std::size_t b_row, T* c, std::size_t c_row,
              std::size_t n, std::size_t depth, std::size_t m) {
    constexpr std::size_t columns = 2 * kBytes / sizeof(T);
    for (std::size_t j = 0; j < m; j += columns) {
        std::size_t i = 0;
        for (; i + kRows <= n; i += kRows)
            tile<T, kRows>({a.at + i * a.row, a.row, a.column}, b + j, b_row, c + i * c_row + j,
                           c_row, depth);
        some_rows<T, kRows>({a.at + i * a.row, a.row, a.column}, b + j, b_row, c + i * c_row + j,
                            c_row, n - i, depth);
    }
}

}  // namespace

#if defined(__AVX512F__)
const Kernels Built::avx512{"avx512", multiply<float>, multiply<double>};
#elif defined(__AVX2__)
const Kernels Built::avx2{"avx2", multiply<float>, multiply<double>};
#else
const Kernels Built::baseline{"baseline", multiply<float>, multiply<double>};
#endif

}  // namespace fedsz::eigen

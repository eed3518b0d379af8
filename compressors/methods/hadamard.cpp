#include <bit>
#include <cmath>
#include <stdexcept>

#include "methods.hpp"

namespace fedsz::methods {

namespace {

// Sums and differences at a distance, and at twice that: one pass over memory for two.
template <class T>
void twice(T* __restrict a, T* __restrict b, T* __restrict c, T* __restrict d, std::size_t distance) {
    for (std::size_t i = 0; i < distance; ++i) {
        const T left = a[i] + b[i], left_less = a[i] - b[i];
        const T right = c[i] + d[i], right_less = c[i] - d[i];
        a[i] = left + right;
        b[i] = left_less + right_less;
        c[i] = left - right;
        d[i] = left_less - right_less;
    }
}

template <class T>
void once(T* __restrict a, T* __restrict b, std::size_t distance) {
    for (std::size_t i = 0; i < distance; ++i) {
        const T left = a[i], right = b[i];
        a[i] = left + right;
        b[i] = left - right;
    }
}

template <class T>
void transform(std::span<T> block, T scale) {
    for (T& value : block) value *= scale;
    const std::size_t width = block.size();
    std::size_t distance = 1;
    for (; 4 * distance <= width; distance *= 4) {
        for (std::size_t at = 0; at < width; at += 4 * distance) {
            T* const a = &block[at];
            twice(a, a + distance, a + 2 * distance, a + 3 * distance, distance);
        }
    }
    if (2 * distance == width) once(block.data(), block.data() + distance, distance);
}

}  // namespace

template <class T>
void hadamard(std::span<T> x, std::size_t width) {
    if (!std::has_single_bit(width) || x.size() % width != 0)
        throw std::invalid_argument("width must be a power of two that divides the elements");
    const T scale = T(1 / std::sqrt(double(width)));
    for (std::size_t at = 0; at < x.size(); at += width) transform(x.subspan(at, width), scale);
}

template void hadamard(std::span<float>, std::size_t);
template void hadamard(std::span<double>, std::size_t);

}  // namespace fedsz::methods

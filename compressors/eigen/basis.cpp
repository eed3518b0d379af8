#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <vector>

#include "eigen.hpp"
#include "kernels.hpp"

namespace fedsz::eigen {
namespace {

// Elements that are multiplied and added up in float32 before their sum is taken to double; and
// columns that are multiplied at a time.
constexpr std::size_t kDepth = 256, kColumns = 256;

const Kernels& best(const Kernels* kernels) {
    return kernels ? *kernels : levels().best();
}

void require(bool fits) {
    if (!fits) throw std::invalid_argument("a tensor, its axis and the squares of that must fit");
}

void check(const Axis& axis, std::size_t elements, std::size_t squares) {
    require(axis.block >= 1 && axis.block <= kMostBlock && axis.size() == elements &&
            axis.squares() == squares);
}

// Calls use(j, at) for the columns first, first + 1, ... of an axis, which has outer * inner of
// them: the element of slice i in column `first` + j is at + i * inner.
template <class Use>
void each_column(const Axis& axis, std::size_t first, std::size_t count, const Use& use) {
    std::size_t outer = first / axis.inner, inner = first % axis.inner;
    for (std::size_t j = 0; j < count; ++j) {
        use(j, outer * axis.length * axis.inner + inner);
        if (++inner == axis.inner) ++outer, inner = 0;
    }
}

// The largest magnitude; NaN or infinite if any element is.
template <class T>
double largest(std::span<const T> x) {
    T most = 0, beyond = 0;  // which becomes NaN with the first that is not finite
    for (const T v : x) {
        const T magnitude = v < 0 ? -v : v;
        most = magnitude > most ? magnitude : most;
        beyond += v - v;
    }
    return double(most) + double(beyond);
}

}  // namespace

std::size_t Axis::begin(std::size_t i) const {
    const std::size_t count = blocks();
    return count ? i * (length / count) + std::min(i, length % count) : 0;
}

std::size_t Axis::square(std::size_t i) const {
    const std::size_t count = blocks();
    if (!count) return 0;
    const std::size_t narrow = length / count, wider = std::min(i, length % count);
    return wider * (narrow + 1) * (narrow + 1) + (i - wider) * narrow * narrow;
}

template <class T>
bool add_products(std::span<const T> x, const Axis& axis, double decay, std::span<float> products,
                  const Kernels* given) {
    check(axis, x.size(), products.size());
    const double most = largest(x);
    if (!(most > 0) || !std::isfinite(most)) return false;
    // By a power of two, which changes no digit: squares of any elements are in range then.
    const double scale = std::ldexp(1.0, -std::ilogb(most) - 1);
    if (!std::isfinite(scale)) return false;  // of the smallest subnormals
    const Multiply<float> multiply = best(given).multiply<float>();
    const std::size_t columns = axis.outer * axis.inner, stride = padded(axis.widest());
    std::vector<float> part(kDepth * stride), product(axis.widest() * stride);
    std::vector<double> sums(products.size());
    for (std::size_t b = 0; b < axis.blocks(); ++b) {
        const std::size_t width = axis.width(b), start = axis.begin(b) * axis.inner;
        double* const total = &sums[axis.square(b)];
        std::ranges::fill(part, 0.0f);
        for (std::size_t at = 0; at < columns; at += kDepth) {
            const std::size_t depth = std::min(kDepth, columns - at);
            each_column(axis, at, depth, [&](std::size_t k, std::size_t from) {
                for (std::size_t i = 0; i < width; ++i)
                    part[k * stride + i] =
                        float(double(x[from + start + i * axis.inner]) * scale);
            });
            multiply({part.data(), 1, stride}, part.data(), stride, product.data(), stride, width,
                     depth, padded(width));
            for (std::size_t i = 0; i < width; ++i)
                for (std::size_t j = 0; j < width; ++j)
                    total[i * width + j] += double(product[i * stride + j]);
        }
    }
    double trace = 0;
    for (std::size_t b = 0; b < axis.blocks(); ++b)
        for (std::size_t i = 0; i < axis.width(b); ++i)
            trace += sums[axis.square(b) + i * (axis.width(b) + 1)];
    for (std::size_t i = 0; i < sums.size(); ++i)
        products[i] = float(decay * double(products[i]) + sums[i] / trace);
    return true;
}

template <class T>
void rotate(std::span<T> x, const Axis& axis, std::span<const float> vectors, bool back,
            const Kernels* given) {
    check(axis, x.size(), vectors.size());
    const Multiply<T> multiply = best(given).multiply<T>();
    const std::size_t columns = axis.outer * axis.inner, widest = axis.widest();
    std::vector<T> around(widest * widest), part(widest * kColumns), product(part);
    for (std::size_t b = 0; b < axis.blocks(); ++b) {
        const std::size_t width = axis.width(b), start = axis.begin(b) * axis.inner;
        std::transform(&vectors[axis.square(b)], &vectors[axis.square(b)] + width * width,
                       around.begin(), [](float v) { return T(v); });
        // Rows of the matrix are at hand; those of the transposed one are its columns.
        const Matrix<const T> turned = back ? Matrix<const T>{around.data(), width, 1}
                                            : Matrix<const T>{around.data(), 1, width};
        for (std::size_t at = 0; at < columns; at += kColumns) {
            const std::size_t count = std::min(kColumns, columns - at);
            each_column(axis, at, count, [&](std::size_t j, std::size_t from) {
                for (std::size_t i = 0; i < width; ++i)
                    part[i * kColumns + j] = x[from + start + i * axis.inner];
            });
            multiply(turned, part.data(), kColumns, product.data(), kColumns, width, width,
                     padded(count));
            each_column(axis, at, count, [&](std::size_t j, std::size_t to) {
                for (std::size_t i = 0; i < width; ++i)
                    x[to + start + i * axis.inner] = product[i * kColumns + j];
            });
        }
    }
}

template bool add_products(std::span<const float>, const Axis&, double, std::span<float>,
                           const Kernels*);
template bool add_products(std::span<const double>, const Axis&, double, std::span<float>,
                           const Kernels*);
template void rotate(std::span<float>, const Axis&, std::span<const float>, bool, const Kernels*);
template void rotate(std::span<double>, const Axis&, std::span<const float>, bool, const Kernels*);

}  // namespace fedsz::eigen

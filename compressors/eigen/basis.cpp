#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "eigen.hpp"
#include "kernels.hpp"
#include "memory.hpp"

namespace fedsz::eigen {
namespace {

// Elements that are multiplied and added up in float32 before their sum is taken to double; and
// columns that are multiplied at a time.
constexpr std::size_t kDepth = 256, kColumns = 256;

const Kernels& best(const Kernels* kernels) {
    return kernels ? *kernels : levels<Built>().best();
}

void require(bool fits) {
    if (!fits) throw std::invalid_argument("a tensor, its axis and the squares of that must fit");
}

void check(const Axis& axis, std::size_t elements, std::size_t squares) {
    require(axis.block >= 1 && axis.block <= kMostBlock && axis.size() == elements &&
            axis.squares() == squares);
}

// Elements between two rows of a matrix whose lengths are near 2^n: a cache has few places for what
// lies that far apart.
constexpr std::size_t kApart = 16, kRow = kColumns + kApart;

// Calls use(j, count, at) for runs of the columns first, first + 1, ... of an axis, which has outer *
// inner of them: elements of slice i in columns `first` + j, ... lie side by side, from at + i * inner.
template <class Use>
void each_run(const Axis& axis, std::size_t first, std::size_t columns, const Use& use) {
    std::size_t outer = first / axis.inner, inner = first % axis.inner;
    for (std::size_t j = 0; j < columns;) {
        const std::size_t count = std::min(axis.inner - inner, columns - j);
        use(j, count, outer * axis.length * axis.inner + inner);
        j += count;
        ++outer, inner = 0;
    }
}

// The largest magnitude; NaN or infinite if any element is.
template <class T>
double largest(std::span<const T> x) {
    constexpr std::size_t lanes = 16;  // none of which waits for another
    T most[lanes] = {}, beyond[lanes] = {};  // which becomes NaN with the first that is not finite
    const auto look = [&](std::size_t lane, T v) {
        const T magnitude = v < 0 ? -v : v;
        most[lane] = magnitude > most[lane] ? magnitude : most[lane];
        beyond[lane] += v - v;
    };
    const std::size_t whole = x.size() / lanes * lanes;
    for (std::size_t i = 0; i < whole; i += lanes)
        for (std::size_t lane = 0; lane < lanes; ++lane) look(lane, x[i + lane]);
    for (std::size_t i = whole; i < x.size(); ++i) look(i - whole, x[i]);
    double all = 0, not_finite = 0;
    for (std::size_t lane = 0; lane < lanes; ++lane) {
        all = std::max(all, double(most[lane]));
        not_finite += double(beyond[lane]);
    }
    return all + not_finite;
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
    // In two factors, since T may have no number as large; only the second rounds then.
    const T first = T(std::min(scale, std::ldexp(1.0, std::numeric_limits<T>::max_exponent - 1)));
    const T second = T(scale / double(first));
    const Multiply<float> multiply = best(given).multiply<float>();
    const std::size_t columns = axis.outer * axis.inner, stride = padded(axis.widest()) + kApart;
    Vector<float> part(kDepth * stride), product(axis.widest() * stride);
    Vector<double> sums(products.size());
    for (std::size_t b = 0; b < axis.blocks(); ++b) {
        const std::size_t width = axis.width(b), start = axis.begin(b) * axis.inner;
        double* const total = &sums[axis.square(b)];
        std::ranges::fill(part, 0.0f);
        for (std::size_t at = 0; at < columns; at += kDepth) {
            const std::size_t depth = std::min(kDepth, columns - at);
            each_run(axis, at, depth, [&](std::size_t k, std::size_t count, std::size_t from) {
                if (axis.inner == 1)
                    for (std::size_t i = 0; i < width; ++i)
                        part[k * stride + i] = float(x[from + start + i] * first * second);
                else
                    for (std::size_t i = 0; i < width; ++i) {
                        float* to = &part[k * stride + i];
                        const T* const line = &x[from + start + i * axis.inner];
                        for (std::size_t j = 0; j < count; ++j, to += stride)
                            *to = float(line[j] * first * second);
                    }
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

// The vectors of a block, row by row or column by column, in rows of `stride` elements.
template <class T>
void spread(const float* vectors, std::size_t width, bool transposed, std::size_t stride,
            std::span<T> to) {
    std::ranges::fill(to, T(0));
    for (std::size_t i = 0; i < width; ++i)
        for (std::size_t j = 0; j < width; ++j)
            to[i * stride + j] = T(transposed ? vectors[j * width + i] : vectors[i * width + j]);
}

template <class T>
void rotate(std::span<T> x, const Axis& axis, std::span<const float> vectors, bool back,
            const Kernels* given) {
    check(axis, x.size(), vectors.size());
    const Multiply<T> multiply = best(given).multiply<T>();
    const std::size_t columns = axis.outer * axis.inner, stride = padded(axis.widest());
    Vector<T> around(axis.widest() * stride), part(axis.widest() * kRow);
    Vector<T> product(std::max(part.size(), kColumns * stride));
    for (std::size_t b = 0; b < axis.blocks(); ++b) {
        const std::size_t width = axis.width(b), start = axis.begin(b) * axis.inner;
        const bool lines = axis.inner == 1;  // which lie side by side, and are rows then
        spread<T>(&vectors[axis.square(b)], width, back == lines, stride, around);
        for (std::size_t at = 0; at < columns; at += kColumns) {
            const std::size_t count = std::min(kColumns, columns - at);
            if (lines) {
                T* const line = &x[at * axis.length + start];
                multiply({line, axis.length, 1}, around.data(), stride, product.data(), stride,
                         count, width, padded(width));
                for (std::size_t j = 0; j < count; ++j)
                    std::copy_n(&product[j * stride], width, line + j * axis.length);
                continue;
            }
            each_run(axis, at, count, [&](std::size_t j, std::size_t n, std::size_t from) {
                for (std::size_t i = 0; i < width; ++i)
                    std::copy_n(&x[from + start + i * axis.inner], n, &part[i * kRow + j]);
            });
            multiply({around.data(), stride, 1}, part.data(), kRow, product.data(), kRow, width,
                     width, padded(count));
            each_run(axis, at, count, [&](std::size_t j, std::size_t n, std::size_t to) {
                for (std::size_t i = 0; i < width; ++i)
                    std::copy_n(&product[i * kRow + j], n, &x[to + start + i * axis.inner]);
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

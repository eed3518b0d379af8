#include "spread.hpp"

#include <algorithm>
#include <cmath>

#include "memory.hpp"
#include "numbers.hpp"
#include "survey.hpp"

namespace fedsz::library {
namespace {

constexpr std::size_t kChunk = std::size_t(1) << 17;  // elements whose sum is one of numpy's

// numpy's sum of contiguous float64: halves, down to 128 elements in eight sums.
double pairwise(const double* x, std::size_t n) {
    if (n < 8) {
        double sum = 0;
        for (std::size_t i = 0; i < n; ++i) sum += x[i];
        return sum;
    }
    if (n > 128) {
        const std::size_t half = n / 2 - n / 2 % 8;
        return pairwise(x, half) + pairwise(x + half, n - half);
    }
    double sums[8];
    std::copy_n(x, 8, sums);
    std::size_t i = 8;
    for (; i < n - n % 8; i += 8)
        for (std::size_t j = 0; j < 8; ++j) sums[j] += x[i + j];
    double sum =
        ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
    for (; i < n; ++i) sum += x[i];
    return sum;
}

// Calls use(x, n) with the finite elements, a chunk at a time, as doubles that it may change.
template <class E, class Use>
void finite_chunks(const void* elements, std::size_t n, const Use& use) {
    const auto* x = static_cast<const typename E::Stored*>(elements);
    Vector<double> finite(std::min(n, kChunk));
    for (std::size_t at = 0; at < n; at += kChunk) {
        std::size_t count = 0;
        for (std::size_t i = at; i < std::min(n, at + kChunk); ++i) {
            finite[count] = double(E::widen(x[i]));
            count += std::isfinite(finite[count]);
        }
        use(finite.data(), count);
    }
}

}  // namespace

double value_range(Dtype dtype, const void* elements, std::size_t n) {
    const uniform::Kernels& kernels = uniform::kernels_of({});
    return visit(dtype, [&]<class E>(E) {
        const auto* x = static_cast<const typename E::Stored*>(elements);
        uniform::Extent<E> all = uniform::nothing<E>;
        for (std::size_t at = 0; at < n; at += uniform::kBlock) {
            const std::size_t end = std::min(n, at + uniform::kBlock);
            const auto some = kernels.of<E>().extent({x + at}, end - at);
            if (some.low > ~E::infinity && some.high < E::infinity) {
                all = uniform::joined(all, some);
                continue;
            }
            for (std::size_t i = at; i < end; ++i)
                if (const auto key = uniform::key<E>(x[i]); uniform::is_finite<E>(x[i]))
                    all = uniform::joined(all, uniform::Extent<E>{key, key});
        }
        if (all.low > all.high) return 0.0;
        const auto limits = uniform::limits_of(all);
        return limits.high - limits.low;
    });
}

double standard_deviation(Dtype dtype, const void* x, std::size_t n) {
    return visit(dtype, [&]<class E>(E) {
        double total = 0, squares = 0, count = 0;
        finite_chunks<E>(x, n, [&](const double* chunk, std::size_t some) {
            count += double(some);
            total += pairwise(chunk, some);
        });
        if (count == 0) return 0.0;
        const double mean = total / count;
        finite_chunks<E>(x, n, [&](double* chunk, std::size_t some) {
            for (std::size_t i = 0; i < some; ++i) {
                chunk[i] -= mean;
                chunk[i] *= chunk[i];
            }
            squares += pairwise(chunk, some);
        });
        return std::sqrt(squares / count);
    });
}

}  // namespace fedsz::library

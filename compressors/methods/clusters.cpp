#include <algorithm>
#include <bit>
#include <limits>
#include <stdexcept>
#include <vector>

#include "methods.hpp"

namespace fedsz::methods {

template <class T>
void cluster(std::span<const T> x, std::span<const double> bounds, std::span<std::int16_t> labels,
             std::span<double> sums, std::span<std::int64_t> counts) {
    if (labels.size() != x.size()) throw std::invalid_argument("there must be a label an element");
    if (sums.size() != bounds.size() + 1 || counts.size() != sums.size())
        throw std::invalid_argument("n bounds make n + 1 clusters");
    if (sums.size() > std::size_t(1) << 15) throw std::invalid_argument("more than 2^15 clusters");
    // Filled up to a power of two, so that all searches take the same steps. Nothing is above the
    // infinities, so no search ends behind the last bound, whatever the bounds are.
    const std::size_t width = std::bit_ceil(sums.size());
    std::vector<double> padded(width, std::numeric_limits<double>::infinity());
    std::ranges::copy(bounds, padded.begin());
    for (std::size_t i = 0; i < x.size(); ++i) {
        const auto value = double(x[i]);
        std::size_t below = 0;
        for (std::size_t half = width / 2; half > 0; half /= 2)
            below += padded[below + half - 1] < value ? half : 0;
        labels[i] = std::int16_t(below);
        sums[below] += value;
        ++counts[below];
    }
}

template void cluster(std::span<const float>, std::span<const double>, std::span<std::int16_t>,
                      std::span<double>, std::span<std::int64_t>);
template void cluster(std::span<const double>, std::span<const double>, std::span<std::int16_t>,
                      std::span<double>, std::span<std::int64_t>);

}  // namespace fedsz::methods

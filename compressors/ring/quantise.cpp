#include "quantise.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <type_traits>

namespace fedsz::ring {

namespace {

// Coefficients at a time: loops over so many do one thing each, so that compilers make vector code.
constexpr std::size_t kBlock = 512;
constexpr std::size_t kLanes = 8;  // sums side by side, in an order that no instruction set changes
using Block = std::array<double, kBlock>;
constexpr Block kNothing{};

void check_size(std::size_t size, std::size_t n, const char* what) {
    if (size != n) throw std::invalid_argument(what);
}

void check(const Grid& grid, std::size_t size, std::size_t n) {
    check_size(grid.steps.size(), n, "there must be as many steps as tokens");
    if (!grid.drawn.empty()) check_size(grid.drawn.size(), n, "there must be as much dither");
    if (grid.where.empty() && n == size) return;
    check_size(grid.where.size(), n, "there must be as many positions as tokens");
    const auto outside = [size](std::int64_t i) { return std::uint64_t(i) >= size; };
    if (std::ranges::any_of(grid.where, outside)) throw std::out_of_range("a position is none");
}

// The nearest whole number, the even one of two: std::rint, as vector code.
inline double rounded(double x) {
    constexpr double whole = 0x1p52;  // from here on there are no others
    const double size = std::fabs(x);
    return std::copysign(size < whole ? (size + whole) - whole : size, x);
}

}  // namespace

bool add_step(std::span<const float> x, std::span<const float> start,
              std::span<const float> residual, std::span<float> y) {
    const std::size_t n = x.size();
    check_size(start.size(), n, "x and its start must have as many elements");
    check_size(y.size(), n, "x and y must have as many elements");
    if (!residual.empty()) check_size(residual.size(), n, "there must be as much residual");
    std::uint32_t finite = 1;
    for (std::size_t i = 0; i < n; ++i) y[i] = x[i] - start[i];
    for (std::size_t i = 0; i < residual.size(); ++i) y[i] += residual[i];
    for (std::size_t i = 0; i < n; ++i)
        finite &= std::uint32_t(std::fabs(y[i]) <= std::numeric_limits<float>::max());
    return finite != 0;
}

template <class T>
Quantised quantise(std::span<float> y, const Grid& grid, double part, std::uint32_t most,
                   std::span<T> tokens) {
    check(grid, y.size(), tokens.size());
    if (most > std::numeric_limits<T>::max() / 2)
        throw std::invalid_argument("tokens do not fit their dtype");
    using Whole = std::conditional_t<sizeof(T) == 4, std::int64_t, std::int32_t>;
    const double limit = most;
    std::array<double, kLanes> energies{};
    std::size_t clipped = 0;
    Block z, left;
    for (std::size_t at = 0; at < tokens.size(); at += kBlock) {
        const std::size_t n = std::min(kBlock, tokens.size() - at);
        const std::int64_t* where = grid.where.empty() ? nullptr : grid.where.data() + at;
        const double* steps = grid.steps.data() + at;
        const double* drawn = grid.drawn.empty() ? kNothing.data() : grid.drawn.data() + at;
        float* here = y.data() + at;
        if (where)
            for (std::size_t i = 0; i < n; ++i) z[i] = y[std::size_t(where[i])];
        else
            for (std::size_t i = 0; i < n; ++i) z[i] = here[i];
        for (std::size_t i = 0; i < n; ++i) z[i] = z[i] * part / steps[i];
        std::fill(z.begin() + std::ptrdiff_t(n), z.end(), 0.0);
        for (std::size_t i = 0; i < n; i += kLanes)
            for (std::size_t k = 0; k < kLanes; ++k) energies[k] += z[i + k] * z[i + k];
        std::uint32_t far = 0;
        for (std::size_t i = 0; i < n; ++i) {
            const double token = rounded(z[i] + drawn[i]);
            const double limited = std::min(std::max(-limit, token), limit);  // of NaN, -limit
            far += std::uint32_t(token != limited);
            tokens[at + i] = T(Whole(limited + limit));
            left[i] = (limited - drawn[i]) * steps[i] / part;
        }
        clipped += far;
        if (part == 0) continue;
        if (where)
            for (std::size_t i = 0; i < n; ++i) {
                float& one = y[std::size_t(where[i])];
                one = float(double(one) - left[i]);
            }
        else
            for (std::size_t i = 0; i < n; ++i) here[i] = float(double(here[i]) - left[i]);
    }
    return {std::accumulate(energies.begin(), energies.end(), 0.0), clipped};
}

template <class T>
std::uint32_t dequantise(std::span<const T> sums, const Grid& grid, double shift, double factor,
                         std::span<float> y) {
    check(grid, y.size(), sums.size());
    T largest = 0;
    for (const T sum : sums) largest = std::max(largest, sum);
    const auto value = [&](std::size_t i, double drawn) {
        return float((double(sums[i]) - shift - drawn) * grid.steps[i] * factor);
    };
    const auto fill = [&](const auto& drawn) {
        if (grid.where.empty())
            for (std::size_t i = 0; i < sums.size(); ++i) y[i] = value(i, drawn(i));
        else
            for (std::size_t i = 0; i < sums.size(); ++i)
                y[std::size_t(grid.where[i])] = value(i, drawn(i));
    };
    if (grid.drawn.empty())
        fill([](std::size_t) { return 0.0; });
    else
        fill([&](std::size_t i) { return grid.drawn[i]; });
    return largest;
}

template Quantised quantise(std::span<float>, const Grid&, double, std::uint32_t,
                            std::span<std::uint8_t>);
template Quantised quantise(std::span<float>, const Grid&, double, std::uint32_t,
                            std::span<std::uint16_t>);
template Quantised quantise(std::span<float>, const Grid&, double, std::uint32_t,
                            std::span<std::uint32_t>);
template std::uint32_t dequantise(std::span<const std::uint8_t>, const Grid&, double, double,
                                  std::span<float>);
template std::uint32_t dequantise(std::span<const std::uint16_t>, const Grid&, double, double,
                                  std::span<float>);
template std::uint32_t dequantise(std::span<const std::uint32_t>, const Grid&, double, double,
                                  std::span<float>);

}  // namespace fedsz::ring

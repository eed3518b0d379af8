// Coefficients as tokens on a grid, and sums of tokens as coefficients; see fedsz/privacy/quantizer.py.
//
// Element i of `where` is the position of coefficient i in y; if it is empty, coefficients are all of
// y in order. `drawn` has the dither of each coefficient, or is empty. T is std::uint8_t,
// std::uint16_t or std::uint32_t.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace fedsz::ring {

// y = x - start + residual, in float32; `residual` may be empty. Says whether all x - start are
// finite. Throws std::invalid_argument unless they have as many elements.
bool add_step(std::span<const float> x, std::span<const float> start,
              std::span<const float> residual, std::span<float> y);

struct Grid {
    std::span<const std::int64_t> where;
    std::span<const double> steps;  // the grid of each coefficient
    std::span<const double> drawn;
};

struct Quantised {
    double energy;        // the sum of squares of coefficients in steps of the grid, before rounding
    std::size_t clipped;  // how many were more than `most` steps
};

// Tokens t + most, with z = y part / step and t = clip(round(z + u), -most, most), ties to even; y
// becomes what is left, y - (t - u) step / part, unless part is 0. Throws std::invalid_argument for
// tokens that T cannot hold and other numbers of elements, std::out_of_range for positions that are
// none.
template <class T>
Quantised quantise(std::span<float> y, const Grid& grid, double part, std::uint32_t most,
                   std::span<T> tokens);

// y = (sum - shift - u) step factor, of each coefficient; others stay. Returns the largest sum.
// Throws as `quantise`.
template <class T>
std::uint32_t dequantise(std::span<const T> sums, const Grid& grid, double shift, double factor,
                         std::span<float> y);

}  // namespace fedsz::ring

// A tensor that may be lossy, coded within a bound that holds in its own dtype: what
// fedsz/core/lossy.py and bound_encoder.py say, of `uniform`.
#pragma once

#include <cstddef>
#include <optional>

#include "arena.hpp"
#include "format.hpp"
#include "numbers.hpp"
#include "uniform.hpp"

namespace fedsz::library {

struct ErrorBound {
    fedsz_bound_kind kind;
    double value;

    // The absolute bound where values have this spread: their range, or their standard deviation.
    double absolute(double spread) const {
        const double bound = kind == FEDSZ_BOUND_ABS ? value : value * spread;
        return std::isfinite(bound) ? bound : 0;
    }
};

// A tensor, what it is a difference from, and how to code it.
struct Task {
    Dtype dtype;
    Shape shape;
    std::size_t n;
    const void* base;  // or null
    ErrorBound bound;
    uniform::Settings settings;

    std::size_t size() const { return n * uniform::size_of(dtype); }
};

struct Coded {
    Buffer payload;
    double bound, max_error;    // absolute
    fedsz_transform transform;  // FEDSZ_VALUES or FEDSZ_DIFFERENCE
};

// Codes n >= 1 elements at x, as a difference from the base if there is one and that can be had.
// Nothing where the bound cannot be kept, or the payload would hardly save anything. Of float32 and
// float64, what that leaves out of x goes to `left`, unless it is null.
std::optional<Coded> encode_within(const Task& task, const void* x, void* left);

// As above of x + weight * residual, if there is one.
std::optional<Coded> encode_fed_back(const Task& task, const void* x, const void* residual,
                                     double weight, void* left);

// As many elements of x + weight * residual, rounded to their dtype.
Buffer with_residual(Dtype dtype, const void* x, const void* residual, double weight,
                     std::size_t n);

// base + difference, in a dtype narrower than the difference's; what is finite stays finite.
void move(Dtype dtype, const void* base, const float* difference, std::size_t n, void* y);

// What wide + weight * residual - decoded leaves of float16 or bfloat16; all 0 if that is not
// finite.
void leave_narrow(Dtype dtype, const void* x, const void* residual, double weight,
                  const void* decoded, std::size_t n, void* left);

// How uniform sees a shape: rows, columns, and a convolution's kernels.
uniform::Geometry geometry_of(Shape shape, std::size_t n);

}  // namespace fedsz::library

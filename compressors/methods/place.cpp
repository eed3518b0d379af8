// Compiled once for each instruction set, which FEDSZ_VARIANT names; see CMakeLists.txt.

#include "place.hpp"

#include <cmath>
#include <cstdint>

namespace fedsz::methods {
namespace {

constexpr double most_steps = 0x1p53;  // more are not counted in double precision

// The nearest whole number, the even one of two. A call of std::rint is none that compilers make
// vector code of.
inline double rounded(double x) {
    constexpr double whole = 0x1p52;  // from here on there are no others
    const double size = std::fabs(x);
    return std::copysign(size < whole ? (size + whole) - whole : size, x);
}

// A miss is NaN, so that the loop has no other result than its points.
bool place(const Placing& placing, std::size_t n) {
    const auto [xs, residual, starts, weight, step, points, left] = placing;
    const double half = step / 2, most = most_steps * step, none = __builtin_nan("");
    for (std::size_t i = 0; i < n; ++i) {
        const float meant = residual[i] * weight + xs[i];
        const double x = meant, start = starts[i];
        double point = rounded((x - start) / step) * step + start;
        const double aside = x - point;  // more than a half, where the quotient was rounded over one
        point += std::fabs(aside) > half ? std::copysign(step, aside) : 0.0;
        point = std::fabs(x) < most ? point : none;
        point = std::fabs(start) < most ? point : none;
        point = std::fabs(x - point) <= half ? point : none;
        point = double(float(point)) == point ? point : none;
        points[i] = float(point);
        left[i] = meant - float(point);
    }
    std::uint32_t misses = 0;
    for (std::size_t i = 0; i < n; ++i) misses |= std::uint32_t(points[i] != points[i]);
    return misses == 0;
}

}  // namespace

#if defined(__AVX512F__)
const PlaceKernels Built::avx512{"avx512", place};
#elif defined(__AVX2__)
const PlaceKernels Built::avx2{"avx2", place};
#else
const PlaceKernels Built::baseline{"baseline", place};
#endif

}  // namespace fedsz::methods

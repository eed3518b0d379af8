// The grid that keeps the bound, and the window of it that tokens cover.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>

#include "kernels.hpp"
#include "memory.hpp"
#include "payload.hpp"
#include "tables.hpp"

namespace fedsz::uniform {

// Smallest and largest of the finite elements.
struct Limits {
    double low, high;
    double magnitude() const { return std::max(std::abs(low), std::abs(high)); }
};

// Numbers k up to this are rounded to as intended, and floats can tell them from their neighbours.
template <class C>
inline constexpr double kMaxNumber = sizeof(C) == 8 ? 0x1p30 : 0x1p22 - 1;

template <class E>
std::int32_t number_of(double x, const Grid<typename E::Compute>& grid) {
    const double k = std::nearbyint(x * double(grid.inverse));
    constexpr double most = kMaxNumber<typename E::Compute>;
    return std::int32_t(std::clamp(k, -most, most));
}

// Half the distance between the numbers of type E around `magnitude`.
template <class E>
double half_ulp(double magnitude) {
    return magnitude > 0 ? std::ldexp(0.5, std::ilogb(magnitude) + 1 - E::digits) : 0;
}

// Sorts numbers byte by byte of their distance from the least. Branches that depend on them would
// take longer than all else of a small tensor.
inline void sort(Vector<std::int32_t>& numbers) {
    if (numbers.empty()) return;
    const auto [least, greatest] = std::ranges::minmax(numbers);
    const std::uint32_t low = std::uint32_t(least), range = std::uint32_t(greatest) - low;
    Vector<std::int32_t> sorted(numbers.size());
    for (unsigned shift = 0; shift < 32 && range >> shift; shift += 8) {
        const auto digit = [&](std::int32_t number) {
            return (std::uint32_t(number) - low) >> shift & 255;
        };
        std::array<std::uint32_t, 257> starts{};
        for (const std::int32_t number : numbers) ++starts[digit(number) + 1];
        std::partial_sum(starts.begin(), starts.end(), starts.begin());
        for (const std::int32_t number : numbers) sorted[starts[digit(number)]++] = number;
        numbers.swap(sorted);
    }
}

// Sets step, inverse and limit. typical() is the magnitude of most elements: those above it
// may turn out exceptions. False where no grid would do: the elements must be stored.
//
// |x - y| <= step / 2, but for the rounding of x / step, at most |k| 2^-p steps, and of y = k step,
// at most |k| 2^-p steps too, for p bits of significand. So a step of 2 bound (1 - (k + 2) 2^(1-p))
// leaves room for both. All the same every element is compared with what it will decode to.
template <class E, class Typical>
bool choose_step(const Typical& typical, double magnitude, double bound,
                 Grid<typename E::Compute>& grid) {
    using C = typename E::Compute;
    constexpr int digits = std::numeric_limits<C>::digits;
    constexpr double largest = sizeof(C) == 8 ? 0x1p1000 : 0x1p120;
    const double rounding = sizeof(C) == sizeof(typename E::Stored) ? 0 : half_ulp<E>(magnitude);
    // Where elements of a narrow type lie as far apart as the bound, the largest are exceptions.
    const double usable = rounding <= bound / 4 ? bound - rounding : 0.75 * bound;
    const double most = magnitude / (2 * usable);
    const double k = most <= 0x1p16 ? most : typical() / (2 * usable);
    if (!(k < std::ldexp(0.25, digits)) || !(k < kMaxNumber<C> / 2)) return false;
    const double exact = std::min(2 * usable * (1 - (k + 2) * std::ldexp(1.0, 1 - digits)), largest);
    grid.step = C(exact);
    if (double(grid.step) > exact) grid.step = std::nextafter(grid.step, C(0));
    if (!(grid.step >= C(0x1p-100))) return false;
    grid.inverse = C(1) / grid.step;
    // v - y is computed with a rounding, which cannot carry it past the number below the bound.
    const double finite = std::min(bound, double(std::numeric_limits<C>::max()));
    grid.limit = C(finite);
    if (double(grid.limit) > finite) grid.limit = std::nextafter(grid.limit, C(0));
    grid.limit = std::nextafter(grid.limit, C(0));
    return true;
}

// Sets a step that is given, of which elements must be multiples. False if the grid cannot have it.
template <class C>
bool take_step(double step, Grid<C>& grid) {
    grid.step = C(step);
    if (double(grid.step) != step || !(step >= 0x1p-100) || !(step <= 0x1p100)) return false;
    grid.inverse = C(1) / grid.step;
    grid.limit = 0;
    return true;
}

// The bits an element loses to a token of `width` numbers that its model takes for equally likely,
// when numbers fall off exponentially over `scale` of them.
inline double flatness_cost(double width, double scale) {
    const double r = width / std::max(scale, 0.5);
    return r < 2 ? 0.06 * r * r : log2_of(r) - 0.76;
}

// Sets base and shift for numbers from `low` to `high`, of which `sample` is sorted: the window is
// wide enough that few elements are exceptions, and tokens are narrow enough to model the rest
// well.
template <class C>
void choose_window(std::int32_t low, std::int32_t high, std::span<const std::int32_t> sample,
                   Grid<C>& grid) {
    constexpr double exception_bits = 48;
    grid.base = low;
    grid.shift = 0;
    if (std::int64_t(high) - low < 256) return;
    const std::size_t n = sample.size();
    const double quartiles = n < 4 ? 0 : double(sample[n * 3 / 4]) - sample[n / 4];
    double least = std::numeric_limits<double>::infinity();
    for (unsigned shift = 0; shift <= kMaxShift; ++shift) {
        const std::int64_t width = std::int64_t(256) << shift;
        const bool all = std::int64_t(high) - low < width;
        std::size_t begin = 0, best = 0, most = 0;
        for (std::size_t end = 0; end < n && !all; ++end) {
            while (std::int64_t(sample[end]) - sample[begin] >= width) ++begin;
            if (end + 1 - begin > most) most = end + 1 - begin, best = begin;
        }
        const double outside = all || n == 0 ? 0 : 1 - double(most) / double(n);
        const double bits =
            outside * exception_bits + flatness_cost(std::ldexp(1.0, int(shift)), 0.72 * quartiles);
        if (bits < least) {
            least = bits;
            // What the sample leaves free of the window goes half to either side.
            const std::int64_t first = most == 0 ? low : sample[best];
            const std::int64_t last = most == 0 ? low : sample[best + most - 1];
            const std::int64_t base = first - (width - (last - first + 1)) / 2;
            grid.base =
                all ? low : std::int32_t(std::clamp<std::int64_t>(base, low, high - width + 1));
            grid.shift = shift;
        }
        if (all) return;
    }
}

}  // namespace fedsz::uniform

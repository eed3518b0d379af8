#include <stdexcept>

#include "methods.hpp"

namespace fedsz::methods {

namespace {

constexpr double height = 0.8660254037844386;  // of a triangle of side 1, the root of 3/4

// The nearest whole number, the even one of two, of up to 2^51. A call of std::rint is none that
// compilers make vector code of.
double rounded(double x) {
    constexpr double shift = 0x1.8p52;
    return (x + shift) - shift;
}

struct Coordinates {
    double a, b;
    double squared;  // distance from the point that it is nearest to
};

// Of the points in one row of the lattice, the nearest.
Coordinates nearest_in_row(double x, double y, double row) {
    const double start = 0.5 * row;
    const double column = rounded(x - start);
    const double aside = column + start - x, above = height * row - y;
    return {column, row, aside * aside + above * above};
}

// Of the rows of even b, or of those of odd b: two rectangular lattices.
Coordinates nearest(double x, double y) {
    const double rows = y / height;
    const Coordinates even = nearest_in_row(x, y, 2 * rounded(0.5 * rows));
    const Coordinates odd = nearest_in_row(x, y, 2 * rounded(0.5 * (rows - 1)) + 1);
    const bool closer = odd.squared < even.squared;
    return {closer ? odd.a : even.a, closer ? odd.b : even.b, 0};
}

void check_points(std::span<const double> x, std::span<const double> y) {
    if (x.size() != y.size()) throw std::invalid_argument("there must be as many x as y");
}

}  // namespace

void uniforms(Draws draws, std::uint64_t start, std::span<double> out) {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = draws.uniform(start + i);
}

void hexagonal_dither(Draws draws, std::uint64_t start, std::span<double> x, std::span<double> y) {
    check_points(x, y);
    for (std::size_t i = 0; i < x.size(); ++i) {
        const double along = draws.uniform(2 * (start + i)), up = draws.uniform(2 * (start + i) + 1);
        x[i] = along + 0.5 * up;
        y[i] = height * up;
    }
    double* const xs = x.data();
    double* const ys = y.data();
    for (std::size_t i = 0; i < x.size(); ++i) {
        const Coordinates point = nearest(xs[i], ys[i]);
        xs[i] -= point.a + 0.5 * point.b;
        ys[i] -= height * point.b;
    }
}

void nearest_hexagonal(std::span<double> x, std::span<double> y) {
    check_points(x, y);
    double* const xs = x.data();
    double* const ys = y.data();
    for (std::size_t i = 0; i < x.size(); ++i) {
        const Coordinates point = nearest(xs[i], ys[i]);
        xs[i] = point.a;
        ys[i] = point.b;
    }
}

}  // namespace fedsz::methods

// Finding the factors of a low-rank prediction; for the encoder alone.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "lowrank.hpp"
#include "memory.hpp"
#include "parallel.hpp"
#include "survey.hpp"

namespace fedsz::uniform {

// A matrix of float32, row by row.
struct Matrix {
    std::size_t rows, columns;
    Vector<float> values;
    Matrix(std::size_t r, std::size_t c) : rows(r), columns(c), values(r * c) {}
    float* row(std::size_t r) { return &values[r * columns]; }
    const float* row(std::size_t r) const { return &values[r * columns]; }
};

// The order of numbers from the largest on, and of equal ones by their place.
Vector<std::size_t> largest_first(std::span<const std::uint64_t> sums);

// An orthonormal basis of what few rows of the matrix span for the most part: [columns, kSketch].
Matrix row_space(const Matrix& rows, const Kernels& kernels);

// How many components are worth the bytes of their factors, at most `most`; `sizes` are the squares
// of what they have of `energy`, from the largest on, in a matrix that costs `bits` an element
// without.
std::size_t worthwhile(std::span<const double> sizes, double energy, double bits, std::size_t rows,
                       std::size_t columns, unsigned most);

// Whether some rows and the space they span leave hope for a component that is worth it.
bool promising(const Matrix& rows, const Matrix& space, double bits, const Geometry& geometry,
               const Kernels& kernels);

// The factors that are worth their bytes, from projections [rows, kSketch] on `space`, when the
// whole matrix has `energy` (its sum of squares, in steps) and costs `bits` an element without
// them.
std::optional<Factors> factors_of(const Matrix& projections, const Matrix& space, double energy,
                                  double bits, unsigned most);

inline constexpr std::size_t kFewRows = 512;  // span what the others do, if they are the largest
inline constexpr float kFarOff = 0x1p14f;     // elements above so many steps are left out

// One pass over a matrix, on the space that its largest rows span (Halko, Martinsson, Tropp, 2011,
// with rows chosen by their norm). All sums have an order of their own: results do not depend on
// threads.
template <class E>
std::optional<Factors> find_factors(const Elements<E>& x, const Geometry& geometry,
                                    typename E::Compute inverse,
                                    std::span<const std::uint64_t> row_sums, double bits,
                                    unsigned most, const Kernels& kernels, unsigned threads) {
#ifdef FEDSZ_FLOAT32_ONLY
    return std::nullopt;  // a small encoder has no memory to look for some
#endif
    const Vector<std::size_t> order = largest_first(row_sums);
    const auto load = [&](std::size_t r, float* out) {
        typename E::Stored block[kBlock];
        for (std::size_t c = 0; c < geometry.columns; c += kBlock) {
            const std::size_t n = std::min(kBlock, geometry.columns - c);
            const auto* elements = x.read(r * geometry.columns + c, n, block);
            kernels.of<E>().scaled(elements, n, inverse, kFarOff, out + c);
        }
    };
    Matrix some(std::min(kFewRows, geometry.rows), geometry.columns);
    for (std::size_t i = 0; i < some.rows; ++i) load(order[i], some.row(i));
    const Matrix space = row_space(some, kernels);
    if (!promising(some, space, bits, geometry, kernels)) return std::nullopt;

    Matrix projections(geometry.rows, kSketch);
    Vector<double> energies(geometry.rows);
    Vector<Vector<float>> rows(threads);
    parallel_for(geometry.rows, threads, [&](unsigned worker, std::size_t r) {
        auto& row = rows[worker];
        row.resize(geometry.columns);
        load(r, row.data());
        kernels.project(row.data(), row.size(), space.values.data(), projections.row(r));
        double sum = 0;
        for (const float v : row) sum += double(v) * v;
        energies[r] = sum;
    });
    const double energy = std::accumulate(energies.begin(), energies.end(), 0.0);
    return factors_of(projections, space, energy, bits, most);
}

}  // namespace fedsz::uniform

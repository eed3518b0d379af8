#include "factorise.hpp"

#include <array>

#include "tables.hpp"

namespace fedsz::uniform {
namespace {

constexpr std::size_t K = kSketch;
using Square = std::array<std::array<double, K>, K>;

// Makes the columns orthonormal (Gram-Schmidt, twice over); those that hardly differ from the ones
// before become zero.
void orthonormalise(Matrix& m) {
    Vector<Vector<double>> basis;
    for (std::size_t j = 0; j < K; ++j) {
        Vector<double> column(m.rows);
        for (std::size_t i = 0; i < m.rows; ++i) column[i] = m.row(i)[j];
        const double before = std::inner_product(column.begin(), column.end(), column.begin(), 0.0);
        for (int pass = 0; pass < 2; ++pass) {
            for (const auto& other : basis) {
                const double along =
                    std::inner_product(column.begin(), column.end(), other.begin(), 0.0);
                for (std::size_t i = 0; i < m.rows; ++i) column[i] -= along * other[i];
            }
        }
        const double after = std::inner_product(column.begin(), column.end(), column.begin(), 0.0);
        const double scale = after > 1e-9 * before && after > 0 ? 1 / std::sqrt(after) : 0;
        for (double& v : column) v *= scale;
        for (std::size_t i = 0; i < m.rows; ++i) m.row(i)[j] = float(column[i]);
        basis.push_back(std::move(column));
    }
}

// The product of all columns with one another.
Square gram(const Matrix& m) {
    Square g{};
    for (std::size_t r = 0; r < m.rows; ++r)
        for (std::size_t i = 0; i < K; ++i)
            for (std::size_t j = 0; j < K; ++j) g[i][j] += double(m.row(r)[i]) * m.row(r)[j];
    return g;
}

// Jacobi's rotations: on return a is diagonal, and the columns of the result are its eigenvectors.
Square diagonalise(Square& a) {
    Square vectors{};
    for (std::size_t i = 0; i < K; ++i) vectors[i][i] = 1;
    for (int sweep = 0; sweep < 12; ++sweep) {
        for (std::size_t p = 0; p < K; ++p) {
            for (std::size_t q = p + 1; q < K; ++q) {
                if (a[p][q] * a[p][q] <= 1e-24 * a[p][p] * a[q][q]) continue;
                const double theta = (a[q][q] - a[p][p]) / (2 * a[p][q]);
                const double t =
                    (theta < 0 ? -1 : 1) / (std::abs(theta) + std::sqrt(theta * theta + 1));
                const double c = 1 / std::sqrt(t * t + 1), s = t * c;
                for (std::size_t k = 0; k < K; ++k) {
                    const double kp = a[k][p], kq = a[k][q];
                    a[k][p] = c * kp - s * kq;
                    a[k][q] = s * kp + c * kq;
                }
                for (std::size_t k = 0; k < K; ++k) {
                    const double pk = a[p][k], qk = a[q][k];
                    a[p][k] = c * pk - s * qk;
                    a[q][k] = s * pk + c * qk;
                    const double vp = vectors[k][p], vq = vectors[k][q];
                    vectors[k][p] = c * vp - s * vq;
                    vectors[k][q] = s * vp + c * vq;
                }
            }
        }
    }
    return vectors;
}

// Of m, combinations of columns: entry (r, j) of the result, at [j * rows + r].
Vector<double> combine(const Matrix& m, const Square& vectors,
                            std::span<const std::size_t> wanted) {
    Vector<double> out(wanted.size() * m.rows);
    for (std::size_t j = 0; j < wanted.size(); ++j)
        for (std::size_t r = 0; r < m.rows; ++r) {
            double sum = 0;
            for (std::size_t k = 0; k < K; ++k) sum += m.row(r)[k] * vectors[k][wanted[j]];
            out[j * m.rows + r] = sum;
        }
    return out;
}

}  // namespace

Vector<std::size_t> largest_first(std::span<const std::uint64_t> sums) {
    Vector<std::size_t> order(sums.size());
    std::iota(order.begin(), order.end(), std::size_t(0));
    std::ranges::sort(order, [&](std::size_t a, std::size_t b) {
        return sums[a] != sums[b] ? sums[a] > sums[b] : a < b;
    });
    return order;
}

Matrix row_space(const Matrix& rows, const Kernels& kernels) {
    Matrix space(rows.columns, K), products(rows.rows, K);
    std::uint32_t random = 1;  // xorshift (Marsaglia, 2003); any signs will do, but always the same
    for (float& v : space.values) {
        random ^= random << 13;
        random ^= random >> 17;
        random ^= random << 5;
        v = random & 1 ? 1.0f : -1.0f;
    }
    for (int pass = 0; pass < 2; ++pass) {
        for (std::size_t r = 0; r < rows.rows; ++r)
            kernels.project(rows.row(r), rows.columns, space.values.data(), products.row(r));
        std::ranges::fill(space.values, 0.0f);
        // In bands of columns, whose sums stay in the first-level cache.
        constexpr std::size_t band = 128;
        for (std::size_t c = 0; c < rows.columns; c += band)
            for (std::size_t r = 0; r < rows.rows; ++r)
                kernels.spread(rows.row(r) + c, std::min(band, rows.columns - c), products.row(r),
                               space.row(c));
        orthonormalise(space);
    }
    return space;
}

std::size_t worthwhile(std::span<const double> sizes, double energy, double bits, std::size_t rows,
                       std::size_t columns, unsigned most) {
    // A component saves about 0.29 bits of entropy for its share of what energy is left (measured
    // on updates of fully connected layers), and costs some 4 bits for each of its factors.
    const double n = double(rows) * double(columns), cost = 4 * double(rows + columns);
    double left = energy;
    std::size_t rank = 0;
    while (rank < most && rank < sizes.size() && sizes[rank] > 0 &&
           0.29 * bits * n * sizes[rank] / left >= cost) {
        left = std::max(left - sizes[rank], 1e-3 * energy);
        ++rank;
    }
    return rank;
}

bool promising(const Matrix& rows, const Matrix& space, double bits, const Geometry& geometry,
               const Kernels& kernels) {
    Matrix projections(rows.rows, K);
    for (std::size_t r = 0; r < rows.rows; ++r)
        kernels.project(rows.row(r), rows.columns, space.values.data(), projections.row(r));
    Square values = gram(projections);
    diagonalise(values);
    double largest = 0, energy = 0;
    for (std::size_t j = 0; j < K; ++j) largest = std::max(largest, values[j][j]);
    for (const float v : rows.values) energy += double(v) * v;
    // Few rows of noise have a component too (Marchenko and Pastur, 1967), which more rows do not.
    const double m = double(rows.rows), root = 1 + std::sqrt(m / double(rows.columns));
    const double beyond_noise[] = {largest - energy * root * root / m};
    return worthwhile(beyond_noise, energy, bits, geometry.rows, geometry.columns, 1) > 0;
}

std::optional<Factors> factors_of(const Matrix& projections, const Matrix& space, double energy,
                                  double bits, unsigned most) {
    const std::size_t rows = projections.rows, columns = space.rows;
    const double n = double(rows) * double(columns);
    Square values = gram(projections);
    const Square vectors = diagonalise(values);
    std::array<std::size_t, K> order;
    std::iota(order.begin(), order.end(), std::size_t(0));
    std::ranges::stable_sort(order, std::greater<>{}, [&](std::size_t j) { return values[j][j]; });

    Vector<double> sizes(K);
    for (std::size_t j = 0; j < K; ++j) sizes[j] = values[order[j]][order[j]];
    const std::size_t rank = worthwhile(sizes, energy, bits, rows, columns, most);
    if (rank == 0) return std::nullopt;
    const double left =
        std::max(energy - std::accumulate(sizes.begin(), sizes.begin() + std::ptrdiff_t(rank), 0.0),
                 1e-3 * energy);

    // Both factors of a component get the square root of its size, and all are rounded alike: the
    // same error for each. It should be small beside what is left to code.
    const std::span wanted(order.data(), rank);
    Vector<double> a = combine(projections, vectors, wanted),
                        b = combine(space, vectors, wanted);
    double total = 0, largest = 0;
    for (std::size_t j = 0; j < rank; ++j) {
        const double size = std::sqrt(sizes[j]), root = std::sqrt(size);
        total += size;
        for (std::size_t r = 0; r < rows; ++r)
            largest = std::max(largest, std::abs(a[j * rows + r] /= root));
        for (std::size_t c = 0; c < columns; ++c)
            largest = std::max(largest, std::abs(b[j * columns + c] *= root));
    }
    constexpr double tolerance = 0.03;
    const double noise = total * (1 / double(rows) + 1 / double(columns)) / 12;  // of a step of 1
    Factors factors{unsigned(rank), 0, rows, columns, {}, {}};
    double step = 1;
    while (factors.scale < kMaxScale && noise * step * step > tolerance * left / n) {
        ++factors.scale;
        step *= 0.70710678118654752;
    }
    while (factors.scale > 0 && largest > 127 * step) {
        --factors.scale;
        step *= 1.4142135623730951;
    }
    const auto rounded = [&](double v) {
        return std::int8_t(std::clamp(std::nearbyint(v / step), -127.0, 127.0));
    };
    factors.left.resize(rows * rank);
    factors.right.resize(columns * rank);
    for (std::size_t j = 0; j < rank; ++j) {
        for (std::size_t r = 0; r < rows; ++r)
            factors.left[r * rank + j] = rounded(a[j * rows + r]);
        for (std::size_t c = 0; c < columns; ++c)
            factors.right[j * columns + c] = rounded(b[j * columns + c]);
    }
    return factors;
}

}  // namespace fedsz::uniform

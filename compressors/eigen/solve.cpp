// Eigenvectors of symmetric matrices: Householder's reduction to three diagonals, then implicit QL
// (Golub and Van Loan, Matrix Computations, 8.3), in double precision.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "eigen.hpp"

namespace fedsz::eigen {
namespace {

constexpr unsigned kMostTurns = 60;  // for an eigenvalue; two are usual

// A symmetric matrix on its way to its eigenvectors, row by row.
class Solver {
public:
    explicit Solver(std::size_t most)
        : matrix_(most * most), rotation_(most * most), diagonal_(most), below_(most),
          w_(most) {}

    // Leaves eigenvectors in the rows of `vectors`, in no order; false where it finds none.
    bool solve(std::span<const float> products, std::size_t n) {
        n_ = n;
        std::ranges::copy(products, matrix_.begin());
        double most = 0;
        for (const float v : products) most = std::max(most, double(std::abs(v)));
        nothing_ = most * 0x1p-100;
        reduce();
        gather();
        return turn();
    }

    const double* vector(std::size_t i) const { return &rotation_[i * n_]; }
    double value(std::size_t i) const { return diagonal_[i]; }

private:
    double* row(std::size_t i) { return &matrix_[i * n_]; }

    // A = Q T Q^T: the k-th reflection 1 - beta v v^T clears column k below the diagonal's
    // neighbour. v takes the place of the column's elements, in row k; beta that of the diagonal.
    void reduce() {
        for (std::size_t k = 0; k + 2 < n_; ++k) {
            double* x = row(k);
            double scale = 0, squares = 0;
            for (std::size_t i = k + 1; i < n_; ++i) scale = std::max(scale, std::abs(x[i]));
            diagonal_[k] = x[k];
            x[k] = 0;
            below_[k] = x[k + 1];
            for (std::size_t i = k + 2; i < n_; ++i) squares += x[i] * x[i];
            if (scale <= nothing_) x[k + 1] = below_[k] = squares = 0;
            if (!(squares > 0)) continue;
            const double first = x[k + 1];
            const double length = std::copysign(std::sqrt(first * first + squares), first);
            below_[k] = -length;
            x[k + 1] = first + length;
            const double beta = 1 / (length * x[k + 1]);
            x[k] = beta;
            reflect(k, beta);
        }
        if (n_ > 1) {
            diagonal_[n_ - 2] = row(n_ - 2)[n_ - 2];
            below_[n_ - 2] = row(n_ - 2)[n_ - 1];
        }
        diagonal_[n_ - 1] = row(n_ - 1)[n_ - 1];
    }

    // Applies a reflection from both sides to what is below and right of row k.
    void reflect(std::size_t k, double beta) {
        const double* v = row(k);
        std::fill(w_.begin(), w_.begin() + std::ptrdiff_t(n_), 0.0);
        for (std::size_t j = k + 1; j < n_; ++j) {
            const double* a = row(j);
            const double factor = beta * v[j];
            for (std::size_t i = k + 1; i < n_; ++i) w_[i] += factor * a[i];
        }
        double along = 0;
        for (std::size_t i = k + 1; i < n_; ++i) along += w_[i] * v[i];
        const double half = 0.5 * beta * along;
        for (std::size_t i = k + 1; i < n_; ++i) w_[i] -= half * v[i];
        for (std::size_t j = k + 1; j < n_; ++j) {
            double* a = row(j);
            const double vj = v[j], wj = w_[j];
            for (std::size_t i = k + 1; i < n_; ++i) a[i] -= vj * w_[i] + wj * v[i];
        }
    }

    // Multiplies the reflections out: the rows of rotation_ become those of Q^T.
    void gather() {
        std::fill(rotation_.begin(), rotation_.begin() + std::ptrdiff_t(n_ * n_), 0.0);
        for (std::size_t i = 0; i < n_; ++i) rotation_[i * n_ + i] = 1;
        for (std::size_t k = n_ < 3 ? 0 : n_ - 2; k-- > 0;) {
            const double* v = row(k);
            const double beta = v[k];
            if (beta == 0) continue;
            std::fill(w_.begin(), w_.begin() + std::ptrdiff_t(n_), 0.0);
            for (std::size_t j = k + 1; j < n_; ++j) {
                const double* q = &rotation_[j * n_];
                const double factor = beta * v[j];
                for (std::size_t i = k + 1; i < n_; ++i) w_[i] += factor * q[i];
            }
            for (std::size_t j = k + 1; j < n_; ++j) {
                double* q = &rotation_[j * n_];
                const double factor = v[j];
                for (std::size_t i = k + 1; i < n_; ++i) q[i] -= factor * w_[i];
            }
        }
        for (std::size_t i = 0; i < n_; ++i)
            for (std::size_t j = 0; j < i; ++j)
                std::swap(rotation_[i * n_ + j], rotation_[j * n_ + i]);
    }

    // Turns the three diagonals into one, and rows of rotation_ into eigenvectors.
    bool turn() {
        below_[n_ - 1] = 0;
        for (std::size_t low = 0; low < n_; ++low) {
            unsigned turns = 0;
            for (std::size_t high; (high = end_of(low)) != low;) {
                if (++turns > kMostTurns) return false;
                chase(low, high);
            }
        }
        return true;
    }

    // The last of the diagonal that is still coupled with `low`.
    std::size_t end_of(std::size_t low) const {
        constexpr double small = std::numeric_limits<double>::epsilon();
        std::size_t high = low;
        while (high + 1 < n_ && std::abs(below_[high]) > small * (std::abs(diagonal_[high]) +
                                                                  std::abs(diagonal_[high + 1])))
            ++high;
        return high;
    }

    // One step of QL, whose rotations chase what is off the diagonals from `high` down to `low`.
    void chase(std::size_t low, std::size_t high) {
        const double ratio = (diagonal_[low + 1] - diagonal_[low]) / (2 * below_[low]);
        const double root = std::copysign(std::sqrt(ratio * ratio + 1), ratio);
        double g = diagonal_[high] - diagonal_[low] + below_[low] / (ratio + root);
        double sine = 1, cosine = 1, moved = 0;
        for (std::size_t i = high; i-- > low;) {
            const double f = sine * below_[i], b = cosine * below_[i];
            const double r = std::sqrt(f * f + g * g);
            below_[i + 1] = r;
            if (r == 0) {  // it has fallen apart here
                diagonal_[i + 1] -= moved;
                below_[high] = 0;
                return;
            }
            sine = f / r;
            cosine = g / r;
            g = diagonal_[i + 1] - moved;
            const double s = (diagonal_[i] - g) * sine + 2 * cosine * b;
            moved = sine * s;
            diagonal_[i + 1] = g + moved;
            g = cosine * s - b;
            rotate(&rotation_[i * n_], &rotation_[(i + 1) * n_], sine, cosine);
        }
        diagonal_[low] -= moved;
        below_[low] = g;
        below_[high] = 0;
    }

    void rotate(double* __restrict x, double* __restrict y, double sine, double cosine) const {
        for (std::size_t k = 0; k < n_; ++k) {
            const double a = x[k], b = y[k];
            y[k] = sine * a + cosine * b;
            x[k] = cosine * a - sine * b;
        }
    }

    std::size_t n_ = 0;
    double nothing_ = 0;  // what rounding has left, whose squares could be too small for a double
    std::vector<double> matrix_, rotation_, diagonal_, below_, w_;
};

}  // namespace

void eigenvectors(std::span<const float> products, const Axis& axis, std::span<float> vectors) {
    if (axis.block < 1 || axis.block > kMostBlock || products.size() != axis.squares() ||
        vectors.size() != axis.squares())
        throw std::invalid_argument("products and vectors must be those of the axis");
    Solver solver(axis.widest());
    std::vector<std::size_t> order(axis.widest());
    for (std::size_t b = 0; b < axis.blocks(); ++b) {
        const std::size_t n = axis.width(b), at = axis.square(b);
        const bool found = solver.solve(products.subspan(at, n * n), n);
        const auto sorted = std::span(order).first(n);
        std::iota(sorted.begin(), sorted.end(), std::size_t(0));
        if (found)
            std::ranges::stable_sort(sorted, [&](std::size_t i, std::size_t j) {
                return solver.value(i) > solver.value(j);
            });
        for (std::size_t j = 0; j < n; ++j)
            for (std::size_t k = 0; k < n; ++k)
                vectors[at + k * n + j] =
                    found ? float(solver.vector(sorted[j])[k]) : float(k == j);
    }
}

}  // namespace fedsz::eigen

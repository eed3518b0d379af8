// What is hot in the methods of fedsz/methods. Everything rounds as numpy does, one operation at a
// time and in this order, so that the two give equal bits: tests/compressors/test_native_methods.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace fedsz::methods {

// Random words that two sides can both draw, SplitMix64 (Steele, Lea and Flood 2014) of a key: word
// i is mix(key + (i + 1) gamma).
class Draws {
public:
    explicit Draws(std::uint64_t key) : key_(key) {}

    std::uint64_t word(std::uint64_t i) const {
        std::uint64_t z = key_ + (i + 1) * 0x9E3779B97F4A7C15;
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
        z = (z ^ z >> 27) * 0x94D049BB133111EB;
        return z ^ z >> 31;
    }

    // Word i as one of the multiples of 2^-53 in [0, 1).
    double uniform(std::uint64_t i) const { return double(std::int64_t(word(i) >> 11)) * 0x1p-53; }

private:
    std::uint64_t key_;
};

// Fills `out` with the words from number `start` on.
void words(Draws draws, std::uint64_t start, std::span<std::uint64_t> out);

// Fills `out` with such numbers, from word `start` on.
void uniforms(Draws draws, std::uint64_t start, std::span<double> out);

// Fills x and y with points that are uniform in the cell of 0 of the lattice whose points are
// a (1, 0) + b (1/2, sqrt(3)/2): point i from words 2 (start + i) and the next.
void hexagonal_dither(Draws draws, std::uint64_t start, std::span<double> x, std::span<double> y);

// Replaces points by the coordinates a and b of the nearest one of that lattice, whole numbers. Those
// of points beyond 2^50 are some other.
void nearest_hexagonal(std::span<double> x, std::span<double> y);

// The points of fedsz/core/grid.py. With m = x + weight * residual, fills `points` with start plus
// the multiples of `step` that are nearest to m, and `left` with m less these. A residual or a start
// that is empty is 0, and an empty left is not wanted. False where float32 does not hold all points,
// or where m or start is so large that double precision does not count the steps; what has been
// filled says nothing then. Throws std::invalid_argument for others of another size than x, and for
// a level that is not here.
bool nearest_points(std::span<const float> x, std::span<const float> residual, float weight,
                    std::span<const float> start, double step, std::span<float> points,
                    std::span<float> left, const std::string& level = "");

// Says whether base + (x - base) is x, of each element.
bool comes_back(std::span<const float> x, std::span<const float> base);

// Negates x[i] where the highest bit of word i is set.
template <class T>
void flip_signs(Draws draws, std::span<T> x);

// One row of a count sketch: element i goes to column floor((word >> 32) columns / 2^32) of word
// start + i, negated if the lowest bit is set. Throws std::invalid_argument for elements without a
// column, and for more than 2^32 columns.
template <class T>
void add_to_sketch(Draws draws, std::uint64_t start, std::span<const T> x, std::span<double> columns);

// Adds to each element what its column holds, with its sign; likewise.
template <class T>
void add_from_sketch(Draws draws, std::uint64_t start, std::span<const T> columns,
                     std::span<double> x);

// Multiplies each block of `width` elements by the Hadamard matrix over the root of its width: sums
// and differences at distance 1, then 2, 4 and so on. Throws std::invalid_argument unless `width` is
// a power of two that divides the elements.
template <class T>
void hadamard(std::span<T> x, std::size_t width);

// Adds weight values[k] to sums[indices[k]], for each k. Throws std::out_of_range for an index that
// is none, with the sums before it added.
template <class T>
void add_sparse(std::span<const std::int64_t> indices, std::span<const T> values, T weight,
                std::span<T> sums);

// Labels each element with the number of bounds, ascending, that are below it, and adds it to the sum
// of its label, and 1 to the count. All in order, in double precision.
template <class T>
void cluster(std::span<const T> x, std::span<const double> bounds, std::span<std::int16_t> labels,
             std::span<double> sums, std::span<std::int64_t> counts);

// Fills `gaps` from their code after Golomb and Rice: docs/format.md, "Planes", without the byte of
// the width. Throws CorruptPayload for any other bytes.
void decode_gaps(std::span<const std::byte> code, unsigned width, std::span<std::int64_t> gaps);

}  // namespace fedsz::methods

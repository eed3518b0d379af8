// Bases in which the steps of a model are small: eigenvectors along each axis of tensors that both
// sides hold, block by block. docs/format.md has them step by step.
//
// All results are equal on every machine: sums have one order, nothing is fused, and no library of
// linear algebra, whose order nobody knows, takes part.
#pragma once

#include <cstddef>
#include <span>

namespace fedsz::eigen {

struct Kernels;

inline constexpr std::size_t kMostBlock = 512;

// A tensor as outer x length x inner elements, of which the middle is the axis that is meant. It is
// cut into blocks as equal as can be, of `block` elements at most; the first are the larger ones.
struct Axis {
    std::size_t outer = 1, length = 1, inner = 1;
    std::size_t block = kMostBlock;  // 1 to kMostBlock

    std::size_t size() const { return outer * length * inner; }
    std::size_t blocks() const { return (length + block - 1) / block; }
    std::size_t begin(std::size_t i) const;
    std::size_t width(std::size_t i) const { return begin(i + 1) - begin(i); }
    std::size_t widest() const { return length ? width(0) : 0; }
    // Where the square matrix of a block begins, if those of all lie one after the other, row by
    // row, and how many elements all of them have.
    std::size_t square(std::size_t i) const;
    std::size_t squares() const { return square(blocks()); }
};

// All that is below throws std::invalid_argument where sizes do not fit or a block is out of range.

// Multiplies `products` by `decay` and adds, for each block of the axis, the products of each two of
// its slices, summed over all else, over the sum of all squares: what is added has a trace of 1.
// False, with nothing added, where an element is not finite or all are 0 or below 2^-1024.
template <class T>
bool add_products(std::span<const T> x, const Axis& axis, double decay, std::span<float> products,
                  const Kernels* kernels = nullptr);

// Fills `vectors` with the eigenvectors of each block of products, each a column, those of the
// largest eigenvalue first. Where there are none to be found, with the identity.
void eigenvectors(std::span<const float> products, const Axis& axis, std::span<float> vectors);

// Multiplies x along the axis by the transposed vectors of each block, or back by the vectors.
template <class T>
void rotate(std::span<T> x, const Axis& axis, std::span<const float> vectors, bool back,
            const Kernels* kernels = nullptr);

}  // namespace fedsz::eigen

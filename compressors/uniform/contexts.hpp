// Which table codes which element: its row's and its column's scale, and, in a convolution, its
// neighbours in the kernel.
//
// A gradient is a sum of outer products, so the scale of its elements is close to a product of one
// number for the row and one for the column; a decoder that knows both vectors knows each element's
// class before it has decoded anything.
#pragma once

#include <cstdint>
#include <span>

#include "kernels.hpp"
#include "memory.hpp"

namespace fedsz::uniform {

inline constexpr unsigned kClasses = 64;  // at most
// Of two neighbours in a kernel the sum counts, clamped to -3..3; of one alone its value, to -2..2.
inline constexpr int kTwoReach = 3, kOneReach = 2;
inline constexpr unsigned kNeighbours = (2 * kTwoReach + 1) + (2 * kOneReach + 1);
inline constexpr unsigned kFractions = 5;
inline constexpr unsigned kContexts = 256;            // at most, of classes and side together
inline constexpr std::size_t kMaxColumns = 1u << 16;  // of a tensor with classes

// A tensor as a matrix, outermost dimension by the rest; a convolution's columns are `planes` for
// each input channel.
struct Geometry {
    std::size_t rows = 1, columns = 0;
    unsigned planes = 1, width = 1;  // kernel positions, and how many of them stand side by side
    std::size_t size() const { return rows * columns; }
    std::size_t channels() const { return columns / planes; }
};

// What else, besides the class, an element's context depends on.
enum class Side : std::uint8_t {
    none = 0,
    neighbours = 1,  // the tokens left and above in the kernel; elements are coded by plane
    fraction = 2,    // how far the prediction lies from the number it is rounded to
};
inline constexpr unsigned kSides[] = {1, kNeighbours, kFractions};  // values that each takes

struct Contexts {
    Geometry geometry;
    unsigned classes = 1;  // 1: rows and columns make no difference
    Side side = Side::none;
    // class = clamp(row + column - offset, 0, classes - 1); a column is an input channel.
    Vector<std::uint8_t> row, column;
    int offset = 0;
    unsigned centre = 0;  // the token that neighbours are compared with
    // For each value of the side and each class, class fastest: its table.
    Vector<std::uint8_t> table;

    bool by_plane() const { return side == Side::neighbours; }
    unsigned sides() const { return kSides[unsigned(side)]; }
    unsigned count() const { return classes * sides(); }
};

// The contexts of a tensor's elements, worked out once for each distinct row class.
class ContextMap {
public:
    // translate: from class and side to what is wanted, a table or the context itself.
    ContextMap(const Contexts& contexts, std::span<const std::uint8_t> translate);

    // Whether all elements have the same.
    bool trivial() const { return contexts_.count() == 1; }

    // Contexts of elements at, at + 1, ... in the order of the tensor; sides: those of the
    // elements, where the side is the prediction's fraction.
    void fill(std::size_t at, const std::uint8_t* sides, std::span<std::uint8_t> out) const;

    // Contexts of plane `plane` of kernels at, at + 1, ..., where the tokens of earlier planes of
    // the same kernels are known: plane p's begin at tokens + p * stride.
    void fill_plane(unsigned plane, std::size_t at, const std::uint8_t* tokens, std::size_t stride,
                    std::span<std::uint8_t> out) const;

private:
    // Classes of elements, each row of which is `columns` of those in rows_.
    void fill_classes(std::size_t at, std::size_t columns, std::span<std::uint8_t> out) const;

    void translate(std::span<std::uint8_t> contexts) const;

    const Contexts& contexts_;
    Vector<std::uint8_t> translate_;
    bool same_ = true;                             // whether each context stands for itself
    Vector<Vector<std::uint8_t>> rows_;  // by row class
};

// Tokens of whole kernels put in planes, or back in order.
void to_planes(const std::uint8_t* tokens, std::size_t kernels, unsigned planes, std::uint8_t* out);
void from_planes(const std::uint8_t* tokens, std::size_t kernels, unsigned planes,
                 std::uint8_t* out);

}  // namespace fedsz::uniform

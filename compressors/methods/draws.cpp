#include <bit>
#include <stdexcept>
#include <type_traits>

#include "methods.hpp"

namespace fedsz::methods {

namespace {

void check_columns(std::size_t elements, std::size_t columns) {
    if ((elements > 0 && columns == 0) || columns > std::size_t(1) << 32)
        throw std::invalid_argument("a sketch has 1 to 2^32 columns");
}

// Where an element goes, and whether it is negated.
struct Hashed {
    Hashed(std::uint64_t word, std::uint64_t columns)
        : column((word >> 32) * columns >> 32), sign(word & 1 ? -1.0 : 1.0) {}

    std::size_t column;
    double sign;
};

}  // namespace

void words(Draws draws, std::uint64_t start, std::span<std::uint64_t> out) {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = draws.word(start + i);
}

template <class T>
void flip_signs(Draws draws, std::span<T> x) {
    using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
    constexpr int below = 64 - 8 * int(sizeof(T));
    constexpr std::uint64_t highest = std::uint64_t(1) << 63;
    for (std::size_t i = 0; i < x.size(); ++i) {
        const auto sign = Bits((draws.word(i) & highest) >> below);
        x[i] = std::bit_cast<T>(Bits(std::bit_cast<Bits>(x[i]) ^ sign));
    }
}

template <class T>
void add_to_sketch(Draws draws, std::uint64_t start, std::span<const T> x,
                   std::span<double> columns) {
    check_columns(x.size(), columns.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
        const Hashed to(draws.word(start + i), columns.size());
        columns[to.column] += double(x[i]) * to.sign;
    }
}

template <class T>
void add_from_sketch(Draws draws, std::uint64_t start, std::span<const T> columns,
                     std::span<double> x) {
    check_columns(x.size(), columns.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
        const Hashed from(draws.word(start + i), columns.size());
        x[i] += double(columns[from.column]) * from.sign;
    }
}

template void flip_signs(Draws, std::span<float>);
template void flip_signs(Draws, std::span<double>);
template void add_to_sketch(Draws, std::uint64_t, std::span<const float>, std::span<double>);
template void add_to_sketch(Draws, std::uint64_t, std::span<const double>, std::span<double>);
template void add_from_sketch(Draws, std::uint64_t, std::span<const float>, std::span<double>);
template void add_from_sketch(Draws, std::uint64_t, std::span<const double>, std::span<double>);

}  // namespace fedsz::methods

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <stdexcept>

#include "corrupt.hpp"
#include "methods.hpp"

namespace fedsz::methods {

namespace {

constexpr unsigned most_width = 48;  // bits of a gap that are not unary

// The bits of each byte as eight bytes of 0 or 1, the lowest first.
constexpr auto spread = [] {
    std::array<std::uint64_t, 256> table{};
    for (unsigned byte = 0; byte < 256; ++byte)
        for (unsigned bit = 0; bit < 8; ++bit)
            table[byte] |= std::uint64_t(byte >> bit & 1) << 8 * bit;
    return table;
}();

// Eight bytes as one number, the first lowest; those behind the end are 0.
std::uint64_t eight(std::span<const std::byte> bytes, std::size_t at) {
    std::uint64_t number = 0;
    for (std::size_t i = at, end = std::min(bytes.size(), at + 8); i < end; ++i)
        number |= std::uint64_t(bytes[i]) << 8 * (i - at);
    return number;
}

// The low bits lie in planes: the lowest of all gaps, then the next of all, and so on.
void decode_low(std::span<const std::byte> planes, unsigned width, std::span<std::int64_t> gaps) {
    const std::size_t length = (gaps.size() + 7) / 8;
    for (std::size_t byte = 0; byte < length; ++byte) {
        std::array<std::uint64_t, most_width / 8> octets{};  // of eight gaps: their bits 0 to 7, ...
        for (unsigned b = 0; b < width; ++b)
            octets[b / 8] |= spread[std::uint8_t(planes[b * length + byte])] << b % 8;
        for (unsigned i = 0; i < 8; ++i) {
            std::int64_t low = 0;
            for (unsigned o = 0; 8 * o < width; ++o)
                low |= std::int64_t(octets[o] >> 8 * i & 0xFF) << 8 * o;
            if (8 * byte + i < gaps.size())
                gaps[8 * byte + i] = low;
            else if (low != 0)
                throw CorruptPayload("bits behind the last");
        }
    }
}

}  // namespace

void decode_gaps(std::span<const std::byte> code, unsigned width, std::span<std::int64_t> gaps) {
    const std::size_t length = (gaps.size() + 7) / 8;
    if (width > most_width || code.size() / std::max(width, 1u) < length)
        throw CorruptPayload("too few bytes of gaps");
    const auto unary = code.subspan(width * length);
    decode_low(code.first(width * length), width, gaps);
    std::size_t found = 0, next = 0;  // gaps, and the bit behind the one before
    for (std::size_t at = 0; at < unary.size(); at += 8) {
        for (std::uint64_t ones = eight(unary, at); ones != 0; ones &= ones - 1) {
            const std::size_t bit = 8 * at + std::size_t(std::countr_zero(ones));
            if (found == gaps.size()) throw CorruptPayload("more gaps than there are");
            if (const std::uint64_t high = bit - next; high >> (63 - width) != 0)
                throw CorruptPayload("a gap out of range");
            else
                gaps[found++] |= std::int64_t(high << width);
            next = bit + 1;
        }
    }
    if (found != gaps.size()) throw CorruptPayload("fewer gaps than there are");
    if (unary.size() != (next + 7) / 8) throw CorruptPayload("bytes behind the last gap");
}

template <class T>
void add_sparse(std::span<const std::int64_t> indices, std::span<const T> values, T weight,
                std::span<T> sums) {
    if (indices.size() != values.size())
        throw std::invalid_argument("there must be as many indices as values");
    for (std::size_t k = 0; k < indices.size(); ++k) {
        const auto index = std::size_t(indices[k]);
        if (index >= sums.size()) throw std::out_of_range("an index of no element");
        const T scaled = values[k] * weight;
        sums[index] += scaled;
    }
}

template void add_sparse(std::span<const std::int64_t>, std::span<const float>, float,
                         std::span<float>);
template void add_sparse(std::span<const std::int64_t>, std::span<const double>, double,
                         std::span<double>);

}  // namespace fedsz::methods

// Tokens of four rows at a time, where most tokens are the same: a quad is a byte with a digit of
// two bits for each. Four elements then take one step of rANS, and what has been decoded takes two
// bits an element until it is added up. Rows of like scales stand together, so that one class suits
// all four.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>

#include "binary.hpp"
#include "contexts.hpp"
#include "memory.hpp"
#include "tables.hpp"

namespace fedsz::uniform {

inline constexpr unsigned kQuad = 4;                   // rows
inline constexpr std::size_t kLeastQuadColumns = 16;  // an order of rows takes less than tokens

// Whether a matrix may be coded as quads.
inline bool fits_quads(const Geometry& geometry) {
    return geometry.rows >= kQuad && geometry.rows <= UINT32_MAX &&
           geometry.columns >= kLeastQuadColumns;
}

// Digits kOther of n elements, so that quads and the tokens behind them take less than a byte each.
constexpr std::size_t most_others(std::size_t n) { return n / 2; }

// Digits, by what tokens are beside the usual one.
enum Digit : unsigned { kUsual = 0, kAbove = 1, kBelow = 2, kOther = 3 };

// Quads are of one kind if as many of their digits are `kOther`, and as many `kAbove` or `kBelow`.
// They have one frequency: rows of like scales can change places, and signs are random.
inline constexpr unsigned kKinds = 15;
struct Kinds {
    std::array<std::uint8_t, kSymbols> of{};  // each quad
    std::array<std::uint8_t, kKinds> size{};  // how many quads are of a kind
    std::array<std::uint8_t, kKinds> units{}, spelled_out{};  // of a kind; and what kind it becomes
};
// That of quads with so many digits kOther, and all others kUsual.
constexpr unsigned first_kind(unsigned others) { return others * (2 * kQuad + 3 - others) / 2; }
constexpr Kinds make_kinds() {
    Kinds kinds;
    for (unsigned quad = 0; quad < kSymbols; ++quad) {
        unsigned others = 0, units = 0;
        for (unsigned row = 0; row < kQuad; ++row) {
            const unsigned digit = quad >> 2 * row & 3;
            others += digit == kOther;
            units += digit == kAbove || digit == kBelow;
        }
        unsigned kind = first_kind(others);
        kind += units;
        kinds.of[quad] = std::uint8_t(kind);
        ++kinds.size[kind];
        kinds.units[kind] = std::uint8_t(units);
        kinds.spelled_out[kind] = std::uint8_t(first_kind(others + units));
    }
    return kinds;
}
inline constexpr Kinds kKindsOfQuads = make_kinds();

// A frequency of each kind, as `Table` has them; what the others leave is that of quad 0.
struct QuadTable {
    std::array<std::uint8_t, kKinds> index{};  // of kind 0: 0

    std::int64_t rest_frequency(unsigned bits) const;
};

// What an encoder puts in the place of each quad: the same, or one whose digits that are not kUsual
// are all kOther.
using Spelling = std::array<std::uint8_t, kSymbols>;

// Spells out quads of kinds so rare that their slots would cost more than their tokens; counts
// become those of what is left.
Spelling spell_out_rare(Counts& counts, unsigned bits);

// The table for `counts` of kinds, not all of them zero.
QuadTable fit_quads(const Counts& counts, unsigned bits);

Frequencies frequencies_of(const QuadTable& table, unsigned bits);

// Tables one after the other, each index as its difference from that in the table before.
class QuadTableWriter {
public:
    void put(BinaryEncoder& coder, const QuadTable& table);

private:
    Number size_[kKinds];
    QuadTable previous_;
    friend class QuadTableReader;
};

class QuadTableReader {
public:
    // Throws CorruptPayload where frequencies do not sum up to 2^bits.
    QuadTable get(BinaryDecoder& coder, unsigned bits);

private:
    QuadTableWriter state_;
};

// Which rows of a tensor stand together: by their class, and in their order where that is equal.
class QuadRows {
public:
    explicit QuadRows(const Contexts& contexts);

    std::size_t groups() const { return (rows_ + kQuad - 1) / kQuad; }
    unsigned size(std::size_t group) const {
        return unsigned(std::min<std::size_t>(kQuad, rows_ - group * kQuad));
    }
    // The number in the tensor of one of a group's rows.
    std::size_t row(std::size_t group, unsigned i) const {
        return order_.empty() ? group * kQuad + i : order_[group * kQuad + i];
    }
    // That of the row behind it; its own if it is the last.
    std::size_t row_behind(std::size_t group, unsigned i) const {
        const std::size_t next = group * kQuad + i + 1;
        return next < rows_ ? row(next / kQuad, next % kQuad) : row(group, i);
    }
    std::size_t elements() const { return rows_ * columns_; }
    std::size_t columns() const { return columns_; }
    std::size_t quads() const { return groups() * columns_; }

    // The bits of a group's quads that stand for elements.
    std::uint8_t mask(std::size_t group) const {
        return std::uint8_t((1u << 2 * size(group)) - 1);
    }

    // The contexts of a matrix of quads, a row for each group, whose class is the mean of its rows'.
    Contexts grouped(const Contexts& contexts) const;

private:
    std::size_t rows_, columns_;
    Vector<std::uint32_t> order_;  // empty: that of the tensor
};

// A row's part of some quads that follow one another.
struct QuadPiece {
    std::size_t row, column, n;
    std::size_t next_row;  // of the next piece
    std::size_t at;  // of its first quad
    unsigned shift;  // of its digits
};

// Calls use(piece) for quads begin..end: by group, of each group row after row. Digits kOther have
// their tokens in this order.
template <class Use>
void for_each_piece(const QuadRows& rows, std::size_t begin, std::size_t end, const Use& use) {
    for (std::size_t at = begin; at < end;) {
        const std::size_t group = at / rows.columns(), column = at % rows.columns();
        const std::size_t n = std::min(rows.columns() - column, end - at);
        for (unsigned i = 0; i < rows.size(group); ++i)
            use(QuadPiece{rows.row(group, i), column, n, rows.row_behind(group, i), at, 2 * i});
        at += n;
    }
}

// Calls use(i) for each digit of quads[i] at `shift` that is kOther, in order.
template <class Use>
void for_each_other(const Kernels& kernels, std::span<const std::uint8_t> quads, unsigned shift,
                    const Use& use) {
    for (std::size_t i = 0; i < quads.size(); i += 64) {
        const std::size_t n = std::min<std::size_t>(64, quads.size() - i);
        std::uint64_t set = kernels.others(quads.data() + i, n, shift);
        for (; set; set &= set - 1) use(i + std::size_t(std::countr_zero(set)));
    }
}

// The quads of all tokens.
Vector<std::uint8_t> to_quads(const Kernels& kernels, std::span<const std::uint8_t> tokens,
                                   const QuadRows& rows, std::uint8_t usual, unsigned threads);

// How many quads of each context are of each kind.
Vector<Counts> count_kinds(const Contexts& contexts, std::span<const std::uint8_t> quads,
                                unsigned threads);

// Spells quads by the table that `map` has for each.
void spell(const ContextMap& map, std::span<const Spelling> spellings,
           std::span<std::uint8_t> quads, unsigned threads);

// The tokens behind digits kOther of quads begin..end.
Vector<std::uint8_t> others_of(const Kernels& kernels, std::span<const std::uint8_t> tokens,
                                    const QuadRows& rows, std::span<const std::uint8_t> quads,
                                    std::size_t begin, std::size_t end);

}  // namespace fedsz::uniform

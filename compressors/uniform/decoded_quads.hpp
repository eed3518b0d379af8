// Quads that wait to be added up: two bits an element, and a byte for each token behind them.
#pragma once

#include <array>
#include <atomic>

#include "memory.hpp"
#include "parallel.hpp"
#include "quads.hpp"
#include "recycled.hpp"
#include "tokens.hpp"

namespace fedsz::uniform {

class DecodedQuads {
public:
    DecodedQuads(const Kernels& kernels, const QuadRows& rows, Chunks chunks, std::uint8_t usual,
                 unsigned threads)
        : kernels_(kernels),
          rows_(rows),
          chunks_(chunks),
          usual_(usual),
          threads_(threads),
          quads_(chunks.n),
          others_(chunks.count()),
          counts_(chunks.count()) {}

    // Where all quads go.
    std::uint8_t* quads() { return quads_.get(); }

    // Where the tokens behind a chunk's quads go, once those are there. Throws CorruptPayload for
    // more than there may be.
    std::span<std::uint8_t> others(std::size_t chunk) {
        // Of four rows at the end, some may be none of the tensor's.
        const std::size_t last = rows_.groups() - 1;
        const std::size_t begin = chunks_.begin(chunk), end = begin + chunks_.length(chunk);
        for (std::size_t at = std::max(begin, last * rows_.columns()); at < end; ++at)
            quads_.get()[at] &= rows_.mask(last);
        counts_[chunk] = count(chunk);
        const auto others = std::size_t(counts_[chunk][kOther]);
        if (all_others_.fetch_add(others) + others > most_others(rows_.elements()))
            throw CorruptPayload("more tokens behind quads than there may be");
        others_[chunk].resize(others);
        return others_[chunk];
    }

    // Calls use(chunk, at, tokens) for all of them, kBlock at most of a row at a time.
    template <class Use>
    void for_each_block(const Use& use) const {
        parallel_for(chunks_.count(), threads_, [&](unsigned, std::size_t chunk) {
            const std::uint8_t* others = others_[chunk].data();
            each_piece(chunk, [&](const QuadPiece& piece) {
                const auto of_chunk = [&](std::size_t at, std::span<std::uint8_t> tokens) {
                    use(chunk, at, tokens);
                };
                others = each_block(piece, others, of_chunk);
            });
        });
    }

    // The sum of the squares of all numbers on the grid.
    template <class E>
    double energy(const Grid<typename E::Compute>& grid) const {
        double sum = 0;
        for (std::size_t chunk = 0; chunk < chunks_.count(); ++chunk) {
            for (const unsigned digit : {kUsual, kAbove, kBelow}) {
                const double k = number(grid, digit);
                sum += double(counts_[chunk][digit]) * k * k;
            }
            const auto& others = others_[chunk];
            sum += kernels_.of<E>().energy_of_tokens(others.data(), others.size(), grid);
        }
        return sum;
    }

    // Adds weight times the elements to sums. Where alone(at, n) is false they are more than their
    // tokens, and added by each(at, tokens).
    template <class E, class Alone, class Each>
    void add(const Grid<typename E::Compute>& grid, typename E::Compute weight,
             typename E::Compute* sums, const Alone& alone, const Each& each) const {
        using C = typename E::Compute;
        C values[4]{};
        for (const unsigned digit : {kUsual, kAbove, kBelow})
            values[digit] = weight * (C(number(grid, digit)) * grid.step);
        parallel_for(chunks_.count(), threads_, [&](unsigned, std::size_t chunk) {
            const Vector<std::uint8_t>& others = others_[chunk];
            Vector<C> values_of_others(others.size() + kReadable);
            const C* const first = values_of_others.data();
            for (std::size_t i = 0; i < others.size(); ++i)
                values_of_others[i] = weight * (C(number_of_token(grid, others[i])) * grid.step);
            const C* next = first;
            each_piece(chunk, [&](const QuadPiece& piece) {
                const std::size_t at = piece.row * rows_.columns() + piece.column;
                if (alone(at, piece.n)) {
                    C* const ahead = sums + piece.next_row * rows_.columns() + piece.column;
                    next = kernels_.of<E>().add_quads(quads_.get() + piece.at, piece.n, piece.shift,
                                                      values, next, sums + at, ahead);
                } else {
                    const std::uint8_t* const used = others.data() + (next - first);
                    next = first + (each_block(piece, used, each) - others.data());
                }
            });
        });
    }

private:
    template <class C>
    std::int32_t number(const Grid<C>& grid, unsigned digit) const {
        return number_of_token(grid, usual_ + (digit & 1) - (digit >> 1));
    }

    template <class C>
    static std::int32_t number_of_token(const Grid<C>& grid, unsigned token) {
        return std::int32_t(std::uint32_t(grid.base) + token);
    }

    // How many of a chunk's elements have each digit.
    using Counts = std::array<std::uint64_t, 4>;
    Counts count(std::size_t chunk) const {
        const std::size_t begin = chunks_.begin(chunk), n = chunks_.length(chunk);
        Counts counts{};
        kernels_.count_digits(quads_.get() + begin, n, &counts[1]);
        each_piece(chunk, [&](const QuadPiece& piece) { counts[kUsual] += piece.n; });
        counts[kUsual] -= counts[kAbove] + counts[kBelow] + counts[kOther];
        return counts;
    }

    template <class Use>
    void each_piece(std::size_t chunk, const Use& use) const {
        const std::size_t begin = chunks_.begin(chunk);
        for_each_piece(rows_, begin, begin + chunks_.length(chunk), use);
    }

    // Calls use(at, tokens) for the blocks of a piece; returns what it leaves of `others`.
    template <class Use>
    const std::uint8_t* each_block(const QuadPiece& piece, const std::uint8_t* others,
                                   const Use& use) const {
        for (std::size_t done = 0; done < piece.n; done += kBlock) {
            const std::span quads(quads_.get() + piece.at + done, std::min(kBlock, piece.n - done));
            std::uint8_t tokens[kBlock];
            kernels_.from_digits(quads.data(), quads.size(), piece.shift, usual_, tokens);
            for_each_other(kernels_, quads, piece.shift,
                           [&](std::size_t i) { tokens[i] = *others++; });
            use(piece.row * rows_.columns() + piece.column + done,
                std::span(tokens).first(quads.size()));
        }
        return others;
    }

    const Kernels& kernels_;
    const QuadRows& rows_;
    Chunks chunks_;
    std::uint8_t usual_;
    unsigned threads_;
    RecycledBytes quads_;
    Vector<Vector<std::uint8_t>> others_;  // of each chunk
    Vector<Counts> counts_;
    std::atomic<std::size_t> all_others_{0};
};

}  // namespace fedsz::uniform

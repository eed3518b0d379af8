// Elements to tokens on a grid: each is compared with what it will decode to, and becomes an
// exception if that is too far away.
#pragma once

#include <algorithm>
#include <bit>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

#include "elements.hpp"
#include "kernels.hpp"
#include "low_bits.hpp"
#include "lowrank.hpp"
#include "parallel.hpp"
#include "payload.hpp"
#include "tokens.hpp"

namespace fedsz::uniform {

template <class E>
class Quantiser {
    using T = typename E::Stored;
    using C = typename E::Compute;
    using Bits = typename E::Bits;

public:
    // left: where what is left out of all elements goes, or null.
    Quantiser(const Elements<E>& x, T* left, const Kernels& kernels, unsigned threads)
        : x_(x), left_(left), kernels_(kernels), threads_(threads), worst_(threads) {}

    // How to quantise; for an encoder to decide.
    Grid<C> grid{};
    std::uint8_t fill = 0;  // the token of elements that are exceptions
    std::optional<Factors> factors;

    // For a pass of `quantise` over so many chunks.
    void begin_chunks(std::size_t count) {
        exceptions_.assign(count, {});
        squares_.assign(count, 0.0);
        std::ranges::fill(worst_, Bits(0));
    }

    // Elements at, at + 1, ... of a chunk, of which there are at most kBlock, to tokens, their low
    // bits to `low` in planes; at is a multiple of kPlane.
    void quantise(unsigned worker, std::size_t chunk, std::size_t at,
                  std::span<std::uint8_t> tokens, std::span<std::uint8_t> low) {
        std::vector<Exception<E>>& exceptions = exceptions_[chunk];
        const std::size_t before = exceptions.size();
        std::uint16_t rest[kBlock];
        std::int32_t numbers[kBlock];
        std::uint8_t fractions[kBlock];
        const std::size_t n = tokens.size();
        T block[kBlock];
        const T* x = x_.read(at, n, block);
        if (factors) factors->predict(kernels_, at, std::span(numbers).first(n), fractions);
        const std::int32_t* prediction = factors ? numbers : nullptr;
        Bits worst = 0;
        // Halves a block that holds an exception, until that is all there is.
        const auto attempt = [&](auto&& self, std::size_t from, std::size_t count) -> void {
            const Bits error = kernels_.of<E>().quantise(x + from, count, grid,
                                                         prediction ? prediction + from : nullptr,
                                                         &tokens[from], &rest[from]);
            if (error <= std::bit_cast<Bits>(grid.limit)) {
                worst = std::max(worst, error);
            } else if (count > 1) {
                self(self, from, count / 2);
                self(self, from + count / 2, count - count / 2);
            } else {
                exceptions.push_back({at + from, x[from]});
                tokens[from] = fill;
                rest[from] = 0;
            }
        };
        attempt(attempt, 0, n);
        worst_[worker] = std::max(worst_[worker], worst);
        if (grid.shift && !low.empty())
            pack_low(kernels_, std::span(rest, n), grid.shift, at, low);
        if (!left_) return;
        T decoded[kBlock];
        kernels_.of<E>().dequantise(tokens.data(), rest, prediction, n, grid, decoded);
        for (std::size_t i = before; i < exceptions.size(); ++i)
            decoded[exceptions[i].position - at] = exceptions[i].value;
        squares_[chunk] += x_.leave(at, n, decoded, left_);
    }

    // Quantises all elements, chunk by chunk, and calls use(worker, chunk, begin, tokens).
    template <class Use>
    void quantise_chunks(const Chunks& chunks, std::span<std::uint8_t> tokens,
                         std::span<std::uint8_t> low, const Use& use) {
        begin_chunks(chunks.count());
        std::vector<std::vector<std::uint8_t>> own(threads_);
        parallel_for(chunks.count(), threads_, [&](unsigned worker, std::size_t i) {
            const std::size_t begin = chunks.begin(i), n = chunks.length(i);
            if (tokens.empty()) own[worker].resize(n);
            const auto here =
                tokens.empty() ? std::span(own[worker]).first(n) : tokens.subspan(begin, n);
            for (std::size_t at = 0; at < n; at += kBlock)
                quantise(worker, i, begin + at, here.subspan(at, std::min(kBlock, n - at)), low);
            use(worker, i, begin, here);
        });
    }

    // Of the last pass: the exceptions of each chunk, the largest error, and the sum of squares of
    // what was left out.
    const std::vector<std::vector<Exception<E>>>& exceptions() const { return exceptions_; }
    double max_error() const { return double(std::bit_cast<C>(std::ranges::max(worst_))); }
    double squares() const { return std::accumulate(squares_.begin(), squares_.end(), 0.0); }

private:
    const Elements<E>& x_;
    T* left_;
    const Kernels& kernels_;
    unsigned threads_;
    std::vector<std::vector<Exception<E>>> exceptions_;  // of each chunk
    std::vector<double> squares_;                        // likewise, of what is left out
    std::vector<Bits> worst_;                            // of each worker
};

}  // namespace fedsz::uniform

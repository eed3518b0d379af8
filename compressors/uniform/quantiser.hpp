// The encoder's last pass: elements to tokens, with exceptions and with what is left out.
#pragma once

#include <algorithm>
#include <bit>
#include <numeric>
#include <span>

#include "elements.hpp"
#include "low_bits.hpp"
#include "lowrank.hpp"
#include "memory.hpp"
#include "payload.hpp"

namespace fedsz::uniform {

template <class E>
class Quantiser {
    using T = typename E::Stored;
    using C = typename E::Compute;
    using Bits = typename E::Bits;

public:
    // `left`: where goes what is left out, or null.
    Quantiser(const Elements<E>& x, const Kernels& kernels, unsigned threads, T* left)
        : x_(x), kernels_(kernels), left_(left), worst_(threads) {}

    // For a pass over so many chunks. fill: the token of elements that are exceptions.
    void begin(std::size_t chunks, const Grid<C>& grid, std::uint8_t fill, const Factors* factors) {
        grid_ = grid;
        fill_ = fill;
        factors_ = factors;
        exceptions_.assign(chunks, {});
        squares_.assign(chunks, 0.0);
        std::ranges::fill(worst_, Bits(0));
    }

    // Elements at, at + 1, ... of a chunk, of which there are at most kBlock, to tokens, their low
    // bits to `low` in planes; at is a multiple of kPlane.
    void quantise(unsigned worker, std::size_t chunk, std::size_t at,
                  std::span<std::uint8_t> tokens, std::span<std::uint8_t> low) {
        if (!all_at_once(worker, chunk, at, tokens)) in_parts(worker, chunk, at, tokens, low);
    }

    // Of each chunk.
    const Vector<Vector<Exception<E>>>& exceptions() const { return exceptions_; }

    double max_error() const { return double(std::bit_cast<C>(std::ranges::max(worst_))); }

    // The sum of squares of what was left out.
    double squares() const { return std::accumulate(squares_.begin(), squares_.end(), 0.0); }

private:
    // False where tokens alone do not say what elements are.
    bool all_at_once(unsigned worker, std::size_t chunk, std::size_t at,
                     std::span<std::uint8_t> tokens) {
        if (factors_ || grid_.shift) return false;
        const ElementKernels<E>& kernels = kernels_.of<E>();
        const std::size_t n = tokens.size();
        T* const left = left_ ? left_ + at : nullptr;
        const Bits error = kernels.tokens(x_.operands(at, n), n, grid_, tokens.data(), left);
        if (error > std::bit_cast<Bits>(grid_.limit)) return false;
        worst_[worker] = std::max(worst_[worker], error);
        if (left) squares_[chunk] += kernels.energy(left, nullptr, n);
        return true;
    }

    void in_parts(unsigned worker, std::size_t chunk, std::size_t at,
                  std::span<std::uint8_t> tokens, std::span<std::uint8_t> low) {
        const ElementKernels<E>& kernels = kernels_.of<E>();
        Vector<Exception<E>>& exceptions = exceptions_[chunk];
        const std::size_t before = exceptions.size();
        std::uint16_t rest[kBlock];
        std::int32_t numbers[kBlock];
        std::uint8_t fractions[kBlock];
        const std::size_t n = tokens.size();
        T block[kBlock];
        const T* x = x_.read(at, n, block);
        if (factors_) factors_->predict(kernels_, at, std::span(numbers).first(n), fractions);
        const std::int32_t* prediction = factors_ ? numbers : nullptr;
        Bits worst = 0;
        // Halves a block that holds an exception, until that is all there is.
        const auto attempt = [&](auto&& self, std::size_t from, std::size_t count) -> void {
            const Bits error =
                kernels.quantise(x + from, count, grid_, prediction ? prediction + from : nullptr,
                                 &tokens[from], &rest[from]);
            if (error <= std::bit_cast<Bits>(grid_.limit)) {
                worst = std::max(worst, error);
            } else if (count > 1) {
                self(self, from, count / 2);
                self(self, from + count / 2, count - count / 2);
            } else {
                exceptions.push_back({at + from, x[from]});
                tokens[from] = fill_;
                rest[from] = 0;
            }
        };
        attempt(attempt, 0, n);
        worst_[worker] = std::max(worst_[worker], worst);
        if (grid_.shift && !low.empty())
            pack_low(kernels_, std::span(rest, n), grid_.shift, at, low);
        if (!left_) return;
        T decoded[kBlock];
        kernels.dequantise(tokens.data(), rest, prediction, n, grid_, decoded);
        for (std::size_t i = before; i < exceptions.size(); ++i)
            decoded[exceptions[i].position - at] = exceptions[i].value;
        squares_[chunk] += x_.leave(at, n, decoded, left_);
    }

    const Elements<E>& x_;
    const Kernels& kernels_;
    T* left_;
    Grid<C> grid_{};
    std::uint8_t fill_ = 0;
    const Factors* factors_ = nullptr;
    Vector<Vector<Exception<E>>> exceptions_;  // of each chunk
    Vector<double> squares_;                   // likewise, of what is left out
    Vector<Bits> worst_;                       // of each worker
};

}  // namespace fedsz::uniform

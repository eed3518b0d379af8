// The loop over two arrays that finds all that is asked of them; part of loops.hpp, as which it is
// compiled. It writes no block: that would take the cache from what is read.
#pragma once

#include <cstddef>
#include <limits>

#include "kernels.hpp"
#include "operand_loops.hpp"

namespace fedsz::uniform {
namespace {

// What has been found of the elements whose index has a remainder each. As many lanes are a few
// vectors, and sums come out the same in vectors of any length.
template <class E, bool Residual, bool Deviation, bool Energies>
class Lanes {
    using Key = typename E::Key;
    using C = typename E::Compute;

public:
    static constexpr std::size_t kCount = 32, kSums = 16;

    explicit Lanes(const Operands<E>& of)
        : of_(of), first_(double(E::widen(coded<E, true, false>(of, 0)))) {
        for (std::size_t lane = 0; lane < kCount; ++lane) {
            low_[lane] = nearest_[lane] = std::numeric_limits<Key>::max();
            high_[lane] = furthest_[lane] = std::numeric_limits<Key>::min();
        }
    }

    void take(std::size_t i, std::size_t lane) {
        const auto x = meant<E, Residual>(of_, i), d = coded<E, true, Residual>(of_, i);
        const Key own = key<E>(x), apart = key<E>(d);
        low_[lane] = own < low_[lane] ? own : low_[lane];
        high_[lane] = own > high_[lane] ? own : high_[lane];
        nearest_[lane] = apart < nearest_[lane] ? apart : nearest_[lane];
        furthest_[lane] = apart > furthest_[lane] ? apart : furthest_[lane];
        if constexpr (Energies) meant_squares_[lane] += E::widen(d) * E::widen(d);
        const auto step = E::widen(Residual ? coded<E, true, false>(of_, i) : d);
        if constexpr (Energies && Residual) step_squares_[lane] += step * step;
        if constexpr (Deviation) steps_[lane] = step;
    }

    // Adds up `some` steps that have been taken; in a loop of its own, which vectors of double
    // suit.
    void add(std::size_t some) {
        if constexpr (!Deviation) return;
        for (std::size_t from = 0; from < some; from += kSums)
            for (std::size_t lane = 0; lane < (some - from < kSums ? some - from : kSums); ++lane) {
                const double v = double(steps_[from + lane]) - first_;
                sum_[lane] += v;
                squares_[lane] += v * v;
            }
    }

    Seen<E> seen() const {
        Seen<E> all{
            {low_[0], high_[0]}, {nearest_[0], furthest_[0]}, {first_, sum_[0], squares_[0]}, 0, 0};
        for (std::size_t lane = 0; lane < kCount; ++lane) {
            all.x.low = low_[lane] < all.x.low ? low_[lane] : all.x.low;
            all.x.high = high_[lane] > all.x.high ? high_[lane] : all.x.high;
            auto& [least, greatest] = all.difference;
            least = nearest_[lane] < least ? nearest_[lane] : least;
            greatest = furthest_[lane] > greatest ? furthest_[lane] : greatest;
            all.meant += double(meant_squares_[lane]);
            all.step += double(Residual ? step_squares_[lane] : meant_squares_[lane]);
        }
        for (std::size_t lane = 1; lane < kSums; ++lane) {
            all.sums.sum += sum_[lane];
            all.sums.squares += squares_[lane];
        }
        return all;
    }

private:
    const Operands<E> of_;
    double first_;
    Key low_[kCount], high_[kCount], nearest_[kCount], furthest_[kCount];
    C steps_[kCount], step_squares_[kCount] = {}, meant_squares_[kCount] = {};
    double sum_[kSums] = {}, squares_[kSums] = {};
};

template <class E, bool Residual, bool Deviation, bool Energies>
Seen<E> look_as(const Operands<E>& of, std::size_t n) {
    Lanes<E, Residual, Deviation, Energies> lanes(of);
    std::size_t i = 0;
    for (; i + lanes.kCount <= n; i += lanes.kCount) {
        for (std::size_t lane = 0; lane < lanes.kCount; ++lane) lanes.take(i + lane, lane);
        lanes.add(lanes.kCount);
    }
    for (std::size_t lane = 0; i + lane < n; ++lane) lanes.take(i + lane, lane);
    lanes.add(n - i);
    return lanes.seen();
}

template <class E, bool Residual>
Seen<E> look_at(const Operands<E>& of, std::size_t n, Asked asked) {
#ifdef __OPTIMIZE_SIZE__
    // In float they hardly take time; sums of double may.
    return asked.deviation ? look_as<E, Residual, true, true>(of, n)
                           : look_as<E, Residual, false, true>(of, n);
#else
    if (asked.deviation)
        return asked.energies ? look_as<E, Residual, true, true>(of, n)
                              : look_as<E, Residual, true, false>(of, n);
    return asked.energies ? look_as<E, Residual, false, true>(of, n)
                          : look_as<E, Residual, false, false>(of, n);
#endif
}

template <class E>
Seen<E> look(const Operands<E>& of, std::size_t n, Asked asked) {
    return of.residual ? look_at<E, true>(of, n, asked) : look_at<E, false>(of, n, asked);
}

}  // namespace
}  // namespace fedsz::uniform

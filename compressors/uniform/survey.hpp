// The encoder's first pass: limits, scales and a sample of a tensor.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "contexts.hpp"
#include "grid.hpp"
#include "kernels.hpp"
#include "parallel.hpp"

namespace fedsz::uniform {

// Magnitudes are added up in units of 2^-kScaleBits of a step.
inline constexpr int kScaleBits = 6;

struct Survey {
    Limits limits;
    std::vector<std::uint64_t> rows, columns;  // sums of magnitudes; empty if not asked for
};

template <class E>
bool is_finite(typename E::Stored x) {
    const auto k = key<E>(x);
    return k > ~E::infinity && k < E::infinity;
}

// None if no element is finite. A band of rows is a thread's piece of work; sums are of integers,
// and so the same however the work is split.
template <class E>
std::optional<Survey> survey(const typename E::Stored* x, const Geometry& geometry, double bound,
                             bool scales, const Kernels& kernels, unsigned threads) {
    using C = typename E::Compute;
    using Key = typename E::Key;
    constexpr Extent<E> none{std::numeric_limits<Key>::max(), std::numeric_limits<Key>::min()};
    const auto join = [](Extent<E> a, Extent<E> b) {
        return Extent<E>{std::min(a.low, b.low), std::max(a.high, b.high)};
    };
    constexpr std::size_t kBand = 1 << 16, kMostRows = 1 << 12;  // rows whose sums fit 32 bits
    const std::size_t rows = scales ? geometry.rows : 1, columns = geometry.size() / rows;
    const std::size_t band = scales ? std::clamp<std::size_t>(kBand / columns, 1, kMostRows) : 1;
    const std::size_t piece = scales ? band * columns : kBand;
    const auto scale = C(std::ldexp(0.5, kScaleBits) / bound);

    Survey found;
    found.rows.resize(scales ? rows : 0);
    found.columns.resize(scales ? columns : 0);
    const std::size_t pieces = (geometry.size() + piece - 1) / piece;
    std::vector<Extent<E>> extents(pieces, none);
    std::vector<std::vector<std::uint64_t>> sums(std::max(threads, 1u));
    std::vector<std::vector<std::uint32_t>> bands(sums.size());
    parallel_for(pieces, threads, [&](unsigned worker, std::size_t i) {
        const std::size_t begin = i * piece, n = std::min(piece, geometry.size() - begin);
        if (!scales) {
            extents[i] = kernels.of<E>().extent(x + begin, n);
            return;
        }
        bands[worker].assign(columns, 0);
        for (std::size_t at = begin; at < begin + n; at += columns)
            extents[i] = join(
                extents[i], kernels.of<E>().magnitudes(x + at, columns, scale, bands[worker].data(),
                                                       &found.rows[at / columns]));
        sums[worker].resize(columns);
        for (std::size_t c = 0; c < columns; ++c) sums[worker][c] += bands[worker][c];
    });
    for (const auto& some : sums)
        for (std::size_t c = 0; c < some.size(); ++c) found.columns[c] += some[c];

    Extent<E> all = none;
    for (const auto& extent : extents) all = join(all, extent);
    if (all.low <= ~E::infinity || all.high >= E::infinity) {
        all = none;
        for (std::size_t i = 0; i < geometry.size(); ++i)
            if (is_finite<E>(x[i])) all = join(all, {key<E>(x[i]), key<E>(x[i])});
        if (all.low > all.high) return std::nullopt;
    }
    found.limits = {double(value<E>(all.low)), double(value<E>(all.high))};
    return found;
}

// Finite elements at equal distances, some `wanted` of them; from the smallest to the largest.
template <class E>
std::vector<double> sample(const typename E::Stored* x, std::size_t n, std::size_t wanted) {
    std::vector<double> taken;
    const std::size_t stride = std::max<std::size_t>(n / wanted, 1);
    for (std::size_t i = stride / 2; i < n; i += stride)
        if (is_finite<E>(x[i])) taken.push_back(double(E::widen(x[i])));
    std::ranges::sort(taken);
    return taken;
}

}  // namespace fedsz::uniform

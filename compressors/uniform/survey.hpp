// The encoder's first pass: limits, scales and a sample of a tensor.
#pragma once

#include <algorithm>
#include <optional>

#include "contexts.hpp"
#include "elements.hpp"
#include "grid.hpp"
#include "kernels.hpp"
#include "memory.hpp"
#include "parallel.hpp"

namespace fedsz::uniform {

// Magnitudes are added up in units of 2^-kScaleBits of a step.
inline constexpr int kScaleBits = 6;

struct Survey {
    Limits limits;
    Vector<std::uint64_t> rows, columns;  // sums of magnitudes; empty if not asked for
};

template <class E>
bool is_finite(typename E::Stored x) {
    const auto k = key<E>(x);
    return k > ~E::infinity && k < E::infinity;
}

// The extent of no elements.
template <class E>
inline constexpr Extent<E> nothing{std::numeric_limits<typename E::Key>::max(),
                                   std::numeric_limits<typename E::Key>::min()};

template <class E>
Extent<E> joined(Extent<E> a, Extent<E> b) {
    return {std::min(a.low, b.low), std::max(a.high, b.high)};
}

template <class E>
Limits limits_of(Extent<E> extent) {
    return {double(value<E>(extent.low)), double(value<E>(extent.high))};
}

// None if no element is finite. A band of rows is a thread's piece of work; sums are of integers,
// and so the same however the work is split.
template <class E>
std::optional<Survey> survey(const Elements<E>& x, const Geometry& geometry, double bound,
                             bool scales, const Kernels& kernels, unsigned threads) {
    using C = typename E::Compute;
    constexpr std::size_t kBand = 1 << 16, kMostRows = 1 << 12;  // rows whose sums fit 32 bits
    const std::size_t rows = scales ? geometry.rows : 1, columns = geometry.size() / rows;
    const std::size_t band = scales ? std::clamp<std::size_t>(kBand / columns, 1, kMostRows) : 1;
    const std::size_t piece = scales ? band * columns : kBand;
    const auto scale = C(std::ldexp(0.5, kScaleBits) / bound);

    Survey found;
    found.rows.resize(scales ? rows : 0);
    found.columns.resize(scales ? columns : 0);
    const std::size_t pieces = (geometry.size() + piece - 1) / piece;
    Vector<Extent<E>> extents(pieces, nothing<E>);
    Vector<Vector<std::uint64_t>> sums(threads);
    Vector<Vector<std::uint32_t>> bands(sums.size());
    parallel_for(pieces, threads, [&](unsigned worker, std::size_t i) {
        const std::size_t begin = i * piece, end = std::min(begin + piece, geometry.size());
        bands[worker].assign(scales ? columns : 0, 0);
        std::size_t row = begin / columns, column = 0;
        for (std::size_t at = begin; at < end; at += kBlock) {
            const std::size_t n = std::min(kBlock, end - at);
            const Operands<E> here = x.operands(at, n);
            if (!scales) {
                extents[i] = joined(extents[i], kernels.of<E>().extent(here, n));
                continue;
            }
            for (std::size_t some, from = 0; from < n; from += some) {
                some = std::min(columns - column, n - from);
                const auto extent = kernels.of<E>().magnitudes(
                    here.from(from), some, scale, &bands[worker][column], &found.rows[row]);
                extents[i] = joined(extents[i], extent);
                column += some;
                if (column == columns) column = 0, ++row;
            }
        }
        if (!scales) return;
        sums[worker].resize(columns);
        for (std::size_t c = 0; c < columns; ++c) sums[worker][c] += bands[worker][c];
    });
    for (const auto& some : sums)
        for (std::size_t c = 0; c < some.size(); ++c) found.columns[c] += some[c];

    Extent<E> all = nothing<E>;
    for (const auto& extent : extents) all = joined(all, extent);
    if (all.low <= ~E::infinity || all.high >= E::infinity) {
        all = nothing<E>;
        for (std::size_t i = 0; i < geometry.size(); ++i)
            if (const auto v = x[i]; is_finite<E>(v)) all = joined(all, {key<E>(v), key<E>(v)});
        if (all.low > all.high) return std::nullopt;
    }
    found.limits = limits_of(all);
    return found;
}

// Finite elements at equal distances, some `wanted` of them.
template <class E>
Vector<double> sample(const Elements<E>& x, std::size_t n, std::size_t wanted) {
    Vector<double> taken;
    const std::size_t stride = std::max<std::size_t>(n / wanted, 1);
    for (std::size_t i = stride / 2; i < n; i += stride)
        if (const auto v = x[i]; is_finite<E>(v)) taken.push_back(double(E::widen(v)));
    return taken;
}

}  // namespace fedsz::uniform

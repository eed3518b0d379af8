#include <algorithm>
#include <cmath>

#include "elements.hpp"
#include "parallel.hpp"
#include "payload.hpp"
#include "survey.hpp"

namespace fedsz::uniform {
namespace {

constexpr std::size_t kPiece = 1 << 16;  // elements that a thread takes at a time

// How many numbers there are, their mean, and the sum of their squared distances from it.
struct Moments {
    double count = 0, mean = 0, squares = 0;

    // Chan, Golub and LeVeque (1983): nothing large is ever taken from something large.
    void join(const Moments& other) {
        if (other.count == 0) return;
        const double all = count + other.count, apart = other.mean - mean;
        squares += other.squares + apart * apart * (count * other.count / all);
        mean += apart * (other.count / all);
        count = all;
    }
};

// What a thread finds in a piece.
template <class E>
struct Found {
    Extent<E> x = nothing<E>, difference = nothing<E>;
    Moments moments;
    double step = 0, meant = 0;
};

template <class E>
Comparison compare_as(const Operands<E>& operands, std::size_t n, Asked asked,
                      const Settings& settings) {
    const Kernels& all = kernels_of(settings);
    const ElementKernels<E>& kernels = all.of<E>();
    const Elements<E> elements(operands, all);
    Vector<Found<E>> found((n + kPiece - 1) / kPiece);
    parallel_for(found.size(), settings.threads, [&](unsigned, std::size_t i) {
        const std::size_t end = std::min(n, (i + 1) * kPiece);
        for (std::size_t at = i * kPiece; at < end; at += kBlock) {
            const std::size_t some = std::min(kBlock, end - at);
            const Seen<E> part = kernels.look(elements.operands(at, some), some, asked);
            found[i].x = joined(found[i].x, part.x);
            found[i].difference = joined(found[i].difference, part.difference);
            found[i].step += part.step;
            found[i].meant += part.meant;
            if (!asked.deviation) continue;
            const auto [first, sum, squares] = part.sums;
            const auto count = double(some);
            found[i].moments.join({count, first + sum / count, squares - sum * (sum / count)});
        }
    });
    Found<E> whole;
    for (const Found<E>& piece : found) {
        whole.x = joined(whole.x, piece.x);
        whole.difference = joined(whole.difference, piece.difference);
        whole.moments.join(piece.moments);
        whole.step += piece.step;
        whole.meant += piece.meant;
    }
    const Limits own = limits_of(whole.x), apart = limits_of(whole.difference);
    const auto& [count, mean, squares] = whole.moments;
    return {own.low,    own.high,
            apart.low,  apart.high,
            count > 0 ? std::sqrt(std::max(squares, 0.0) / count) : 0,
            whole.step,
            whole.meant};
}

}  // namespace

Comparison compare_elements(Dtype dtype, const void* x, const void* base, std::size_t n,
                            Asked asked, const Settings& settings, const Residual& residual) {
    return visit(dtype, [&]<class E>(E) {
        return compare_as<E>(operands_of<E>(x, base, residual), n, asked, settings);
    });
}

}  // namespace fedsz::uniform

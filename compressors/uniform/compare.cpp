#include <algorithm>
#include <cmath>
#include <vector>

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
};

template <class E>
Comparison compare_as(const typename E::Stored* x, const typename E::Stored* base, std::size_t n,
                      bool deviation, const Settings& settings) {
    const ElementKernels<E>& kernels = kernels_of(settings).of<E>();
    std::vector<Found<E>> found((n + kPiece - 1) / kPiece);
    parallel_for(found.size(), settings.threads, [&](unsigned, std::size_t i) {
        const std::size_t end = std::min(n, (i + 1) * kPiece);
        for (std::size_t at = i * kPiece; at < end; at += kBlock) {
            const std::size_t some = std::min(kBlock, end - at);
            // One of them: their mean is no further from it than they are from each other.
            const double shift = double(E::widen(x[at]) - E::widen(base[at])), count = double(some);
            const Compared<E> part = kernels.compare(x + at, base + at, some, shift, deviation);
            found[i].x = joined(found[i].x, part.x);
            found[i].difference = joined(found[i].difference, part.difference);
            if (deviation)
                found[i].moments.join({count, shift + part.sum / count,
                                       part.squares - part.sum * (part.sum / count)});
        }
    });
    Found<E> whole;
    for (const Found<E>& piece : found) {
        whole.x = joined(whole.x, piece.x);
        whole.difference = joined(whole.difference, piece.difference);
        whole.moments.join(piece.moments);
    }
    const Limits own = limits_of(whole.x), apart = limits_of(whole.difference);
    const auto& [count, mean, squares] = whole.moments;
    return {own.low, own.high, apart.low, apart.high,
            count > 0 ? std::sqrt(std::max(squares, 0.0) / count) : 0};
}

}  // namespace

Comparison compare_elements(Dtype dtype, const void* x, const void* base, std::size_t n,
                            bool deviation, const Settings& settings) {
    return visit(dtype, [&]<class E>(E) {
        using T = typename E::Stored;
        return compare_as<E>(static_cast<const T*>(x), static_cast<const T*>(base), n, deviation,
                             settings);
    });
}

}  // namespace fedsz::uniform

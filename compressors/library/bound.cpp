#include "bound.hpp"

#include <algorithm>
#include <cstring>
#include <functional>

#include "failure.hpp"

namespace fedsz::library {
namespace {

struct Payload {
    Buffer bytes;
    double max_error, left;
};

Payload encode(const Task& task, Dtype dtype, const void* x, const void* base, double bound,
               double step = 0, const uniform::Residual& residual = {}, void* left = nullptr) {
    Buffer bytes(uniform::capacity(dtype, task.n));
    const auto encoded = uniform::encode(dtype, x, geometry_of(task.shape, task.n), bound,
                                         task.settings, bytes.span(), base, step, residual, left);
    bytes.shrink(encoded.size);
    return {std::move(bytes), encoded.max_error, encoded.left};
}

// As many elements of float16 or bfloat16, in float32.
Vector<float> widened(const Task& task, const void* elements) {
    Vector<float> y(task.n);
    visit(task.dtype, [&]<class E>(E) {
        if constexpr (sizeof(typename E::Stored) == 2) {
            const auto* x = static_cast<const typename E::Stored*>(elements);
            std::transform(x, x + task.n, y.begin(), E::widen);
        }
    });
    return y;
}

// Looks at x and x - base, in the dtype of differences.
uniform::Comparison compared(const Task& task, const void* x, bool deviation) {
    if (is_wide(task.dtype))
        return uniform::compare(task.dtype, x, task.base, task.n, {deviation, false},
                                task.settings);
    const auto wide = widened(task, x), base = widened(task, task.base);
    return uniform::compare(Dtype::float32, wide.data(), base.data(), task.n, {deviation, false},
                            task.settings);
}

// The largest magnitude that a tensor can have once it is decoded.
double reach(const uniform::Comparison& seen, double bound) {
    return std::max(-seen.low, seen.high) + bound;
}

struct Allowed {
    double bound, rounding;  // absolute; of it, what rounding takes: infinite where a sum could be
};

Allowed allowed(const uniform::Comparison& seen, const ErrorBound& rule, Dtype dtype) {
    const double bound =
        rule.absolute(rule.kind == FEDSZ_BOUND_STD ? seen.deviation : seen.high - seen.low);
    const double most = reach(seen, bound);
    if (most > precision_of(dtype).largest) return {bound, std::numeric_limits<double>::infinity()};
    return {bound, half_ulp(std::max(-seen.least, seen.greatest), dtype) + half_ulp(most, dtype)};
}

std::optional<Coded> encode_difference(const Task& task, const void* x, void* left) {
    const Dtype dtype = wide(task.dtype);
    const auto seen = compared(task, x, task.bound.kind == FEDSZ_BOUND_STD);
    // NaN and infinities come back exactly only as they are.
    if (!std::isfinite(seen.least) || !std::isfinite(seen.greatest)) return std::nullopt;
    auto [bound, rounding] = allowed(seen, task.bound, dtype);
    if (!std::isfinite(rounding)) return std::nullopt;
    double spare = bound - rounding, narrowing = 0;
    if (dtype != task.dtype) {
        // Rounding a sum to a dtype that holds x doubles its error at most.
        narrowing = half_ulp(reach(seen, bound), task.dtype);
        spare = std::max(spare - narrowing, bound / 2 - rounding);
    }
    if (!(spare > 0)) return std::nullopt;
    if (dtype == task.dtype) {
        Payload payload = encode(task, dtype, x, task.base, spare, 0, {}, left);
        return Coded{std::move(payload.bytes), bound, payload.max_error + rounding,
                     FEDSZ_DIFFERENCE};
    }
    Vector<float> difference = widened(task, x);
    {
        const auto base = widened(task, task.base);
        std::transform(difference.begin(), difference.end(), base.begin(), difference.begin(),
                       std::minus<>());
    }
    Payload payload = encode(task, dtype, difference.data(), nullptr, spare);
    const double error = payload.max_error + rounding;
    return Coded{std::move(payload.bytes), bound, std::min(error + narrowing, 2 * error),
                 FEDSZ_DIFFERENCE};
}

std::optional<Coded> encode_values(const Task& task, const void* x, void* left) {
    // A bound by the spread of the differences is none for values: what did not move would be lost.
    const bool by_deviation = task.bound.kind == FEDSZ_BOUND_STD;
    if (task.base && by_deviation) return std::nullopt;
    double spread = 0;
    if (by_deviation || task.bound.kind == FEDSZ_BOUND_REL) {
        const auto of = by_deviation ? uniform::standard_deviation : uniform::value_range;
        spread = of(task.dtype, x, task.n, task.settings);
    }
    const double bound = task.bound.absolute(spread);
    if (bound == 0) return std::nullopt;
    Payload payload = encode(task, task.dtype, x, nullptr, bound, 0, {}, left);
    return Coded{std::move(payload.bytes), bound, payload.max_error, FEDSZ_VALUES};
}

// Whether a payload is so large that its tensor had better stay lossless.
bool hardly_saves(const Buffer& payload, const Task& task) {
    return double(payload.size()) * 10 > double(task.size()) * 9;
}

// With a residual, a bound by the deviation is that of the step alone: else it would grow with what
// it leaves out.
void bound_by_step(Task& task, const void* residual, double deviation) {
    if (task.bound.kind != FEDSZ_BOUND_STD || !task.base || !residual) return;
    if (const double own = task.bound.absolute(deviation); own > 0)
        task.bound = {FEDSZ_BOUND_ABS, own};
}

bool all_finite(Dtype dtype, const void* elements, std::size_t n) {
    return visit(dtype, [&]<class E>(E) {
        const auto* x = static_cast<const typename E::Stored*>(elements);
        return std::all_of(x, x + n, [](auto value) { return std::isfinite(E::widen(value)); });
    });
}

}  // namespace

uniform::Geometry geometry_of(Shape shape, std::size_t n) {
    if (shape.size() < 2) return {1, n, 1, 1};
    std::uint64_t planes = 1;
    for (const std::uint64_t length : shape.subspan(2)) planes = product(planes, length);
    const bool kernels = planes >= 4 && planes <= 255;
    return {std::size_t(shape[0]), shape[0] ? n / std::size_t(shape[0]) : 0,
            kernels ? unsigned(planes) : 1, kernels ? unsigned(shape.back()) : 1};
}

std::optional<Coded> encode_within(const Task& task, const void* x, void* left) {
    std::optional<Coded> coded;
    if (task.base) coded = encode_difference(task, x, left);
    if (!coded) coded = encode_values(task, x, left);
    if (coded && hardly_saves(coded->payload, task)) coded.reset();
    return coded;
}

std::optional<Coded> encode_fed_back(const Task& task, const void* x, const void* residual,
                                     double weight, void* left) {
    const bool by_deviation = task.bound.kind == FEDSZ_BOUND_STD;
    Task whole = task;
    if (is_wide(task.dtype)) {
        const uniform::Residual before{residual, weight};
        const auto seen = uniform::compare(task.dtype, x, task.base ? task.base : x, task.n,
                                           {by_deviation, true}, task.settings, before);
        if (std::isfinite(seen.meant + seen.step) && (task.base || !by_deviation)) {
            auto [bound, rounding] = allowed(seen, task.bound, task.dtype);
            if (!task.base) rounding = 0;
            if (bound > rounding) {
                Payload payload =
                    encode(task, task.dtype, x, task.base, bound - rounding, 0, before, left);
                if (hardly_saves(payload.bytes, task)) return std::nullopt;
                return Coded{std::move(payload.bytes), bound, payload.max_error + rounding,
                             task.base ? FEDSZ_DIFFERENCE : FEDSZ_VALUES};
            }
        }
        bound_by_step(whole, residual, seen.deviation);
    } else if (by_deviation && task.base && residual) {
        bound_by_step(whole, residual, compared(task, x, true).deviation);
    }
    Buffer meant;
    if (residual) meant = with_residual(task.dtype, x, residual, weight, task.n);
    auto coded = encode_within(whole, residual ? meant.data() : x, left);
    if (coded && left && !all_finite(task.dtype, left, task.n)) std::memset(left, 0, task.size());
    return coded;
}

Buffer with_residual(Dtype dtype, const void* x, const void* residual, double weight,
                     std::size_t n) {
    Buffer meant(n * uniform::size_of(dtype));
    visit(dtype, [&]<class E>(E) {
        using T = typename E::Stored;
        using C = typename E::Compute;
        const auto *from = static_cast<const T*>(x), *more = static_cast<const T*>(residual);
        auto* const to = reinterpret_cast<T*>(meant.data());
        const C times = C(weight);
        for (std::size_t i = 0; i < n; ++i) {
            const C sum = C(E::widen(more[i]) * times) + E::widen(from[i]);
            if constexpr (sizeof(T) == 2)
                to[i] = narrowed<E>(sum);
            else
                to[i] = sum;
        }
    });
    return meant;
}

void move(Dtype dtype, const void* base, const float* difference, std::size_t n, void* y) {
    visit(dtype, [&]<class E>(E) {
        if constexpr (sizeof(typename E::Stored) == 2) {
            const auto* from = static_cast<const typename E::Stored*>(base);
            auto* to = static_cast<typename E::Stored*>(y);
            for (std::size_t i = 0; i < n; ++i) {
                const float start = E::widen(from[i]);
                float whole = start + difference[i];
                if (std::isinf(whole) && std::isfinite(start) && std::isfinite(difference[i]))
                    whole = std::copysign(std::numeric_limits<float>::max(), whole);
                to[i] = narrowed<E>(whole);
            }
        }
    });
}

void leave_narrow(Dtype dtype, const void* x, const void* residual, double weight,
                  const void* decoded, std::size_t n, void* left) {
    visit(dtype, [&]<class E>(E) {
        if constexpr (sizeof(typename E::Stored) == 2) {
            using T = typename E::Stored;
            const auto *from = static_cast<const T*>(x), *more = static_cast<const T*>(residual),
                       *sent = static_cast<const T*>(decoded);
            auto* to = static_cast<T*>(left);
            const float times = float(weight);
            bool finite = true;
            for (std::size_t i = 0; i < n; ++i) {
                float meant = E::widen(from[i]);
                if (more) meant = E::widen(more[i]) * times + meant;
                const float rest = meant - E::widen(sent[i]);
                finite = finite && std::isfinite(rest);
                to[i] = narrowed<E>(rest);
            }
            if (!finite) std::memset(left, 0, n * sizeof(T));
        }
    });
}

}  // namespace fedsz::library

#include "chained.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "failure.hpp"
#include "place.hpp"
#include "uniform.hpp"

namespace fedsz::library {
namespace {

constexpr std::size_t kMostVarint = 9;  // bytes
constexpr double kMostOfOwn = 4;        // root mean squares of its own that bound a tensor's step
constexpr float kSmall = 0x1p30;        // whose square, 2^56 times, is a float32

// Takes an unsigned LEB128 number off a payload.
std::uint64_t varint(Octets& payload) {
    std::uint64_t number = 0;
    for (unsigned i = 0; i < kMostVarint; ++i) {
        if (payload.empty()) fail(FEDSZ_ERROR_CORRUPT, "a number ends early");
        const std::uint8_t byte = payload[0];
        payload = payload.subspan(1);
        number |= std::uint64_t(byte & 0x7F) << 7 * i;
        if (byte < 0x80) return number;
    }
    fail(FEDSZ_ERROR_CORRUPT, "a number of more than 9 bytes");
}

// The one plane of such a chain: its number of elements, and of bytes, which are these.
Octets plane(Octets payload) {
    const std::uint64_t count = varint(payload), length = varint(payload);
    if (count != length || length != payload.size())
        fail(FEDSZ_ERROR_CORRUPT, "a plane of ", length, " bytes, of which there are ",
             std::uint64_t(payload.size()));
    return payload;
}

// The largest magnitude; infinite or NaN if any element is. Bits of magnitudes have their order,
// and compilers make vectors of that alone.
template <class C>
C largest(std::span<const C> x) {
    using Bits = std::conditional_t<sizeof(C) == sizeof(float), std::int32_t, std::int64_t>;
    Bits most = 0;
    for (const C v : x)
        most = std::max(most, Bits(std::bit_cast<Bits>(v) & std::numeric_limits<Bits>::max()));
    return std::bit_cast<C>(most);
}

template <class C>
bool all_finite(std::span<const C> x) {
    return std::isfinite(largest(x));
}

// What rounding to a narrower dtype takes from a decoded tensor is left out, too.
template <class E>
void leave_rounding(const Task& task, const float* decoded, float* left) {
    const Buffer arriving(task.size());
    place(task.dtype, task.base, decoded, task.n, arriving.data());
    const auto* const y = reinterpret_cast<const typename E::Stored*>(arriving.data());
    const auto* const base = static_cast<const typename E::Stored*>(task.base);
    for (std::size_t i = 0; i < task.n; ++i) {
        const float arrived = base ? E::widen(y[i]) - E::widen(base[i]) : E::widen(y[i]);
        left[i] += decoded[i] - arrived;
    }
}

}  // namespace

ChainText chain_to_write(const fedsz_chain& given) {
    require(given.text, "a chain's text");
    const auto chain = parsed_chain(given.text);
    if (!chain || !chain->history.empty())
        fail(FEDSZ_ERROR_ARGUMENT, "no chain that this library writes: '",
             std::string_view(given.text), "'; such as eigen>uniform@step:1");
    if (!(given.step >= 0 && std::isfinite(given.step)))
        fail(FEDSZ_ERROR_ARGUMENT, "a chain's step must be finite, and 0 or more");
    return *chain;
}

Chain::Chain(const fedsz_chain& given)
    : seed(given.seed), round(given.round), sender(given.sender), step_(given.step),
      history_(reinterpret_cast<const History*>(given.history)) {
    const ChainText chain = chain_to_write(given);
    bound_of_ = chain.bound_of;
    bound_ = chain.bound;
    effort_ = chain.effort;
    if (!chain.eigen) history_ = nullptr;
    if (history_) of_ = history_->digest();
    const auto add = [this](std::string_view more) {
        text_.insert(text_.end(), more.begin(), more.end());
    };
    text_.reserve(32 + chain.coder.size());
    if (history_) {
        std::array<char, 16> digits;
        const std::string_view shown = history_->shown(digits);
        add("eigen");
        if (!shown.empty()) add(":of="), add(shown);
        add(">");
    }
    add(chain.coder);
}

template <class E>
std::optional<Buffer> Chain::encode_as(const Task& task, std::string_view name, const void* x,
                                       const Fed* fed) const {
    using C = typename E::Compute;
    constexpr Dtype wide_dtype = sizeof(C) == sizeof(float) ? Dtype::float32 : Dtype::float64;
    const std::size_t n = task.n;
    const auto* const from = static_cast<const typename E::Stored*>(x);
    const auto* const base = static_cast<const typename E::Stored*>(task.base);
    C* const left = fed ? static_cast<C*>(fed->left) : nullptr;

    Vector<C> meant(n);
    for (std::size_t i = 0; i < n; ++i)
        meant[i] = base ? E::widen(from[i]) - E::widen(base[i]) : E::widen(from[i]);
    const C most = largest<C>(meant);
    double energy = 0;
    if (bound_of_ == BoundOf::step)
        energy = uniform::energy(wide_dtype, meant.data(), nullptr, n, false, task.settings);
    if (!std::isfinite(most)) {
        if (left) std::memset(left, 0, n * sizeof(C));
        return std::nullopt;
    }
    if (fed) {
        const auto* const residual = static_cast<const C*>(fed->residual);
        for (std::size_t i = 0; i < n; ++i)
            meant[i] = (residual ? residual[i] * C(fed->weight) : C(0)) + meant[i];
    }
    const auto keep = [&] {
        if (left) keep_residual(*fed, n * sizeof(C));
        return std::nullopt;
    };

    if (history_ && history_->digest() != of_)
        fail(FEDSZ_ERROR_ARGUMENT, "the history has gone on since this writer began");
    const Axes axes(task.shape);
    const auto vectors = history_ ? history_->vectors(name, axes) : std::span<const float>();
    Vector<C> y = meant;
    rotate<C>(y, axes, vectors, false);
    if (!all_finite<C>(y)) return keep();
    double bound = bound_;
    if (bound_of_ == BoundOf::step) {
        const double own = std::sqrt(energy / double(n));
        const double scale = own > 0 ? std::min(step_, kMostOfOwn * own) : step_;
        if (!(scale > 0) || !std::isfinite(energy)) return keep();
        bound *= scale;
    } else if (bound_of_ != BoundOf::nothing) {
        const auto spread =
            bound_of_ == BoundOf::range ? uniform::value_range : uniform::standard_deviation;
        bound *= spread(wide_dtype, y.data(), n, task.settings);
        if (!std::isfinite(bound)) bound = 0;
    }

    // The plane, and before it twice how long it is.
    constexpr std::size_t room = 2 * kMostVarint;
    const uniform::Settings settings{effort_, task.settings.threads, nullptr,
                                     task.settings.shrink};
    Buffer payload(room + uniform::capacity(wide_dtype, n));
    const auto geometry = geometry_of(task.shape, n);
    const std::size_t size = uniform::encode(wide_dtype, y.data(), geometry, bound, settings,
                                             payload.span().subspan(room))
                                 .size;
    std::uint8_t* to = payload.data();
    for (int twice = 0; twice < 2; ++twice) {
        std::size_t rest = size;
        for (; rest >= 0x80; rest >>= 7) *to++ = std::uint8_t(rest | 0x80);
        *to++ = std::uint8_t(rest);
    }
    std::memmove(to, payload.data() + room, size);
    payload.shrink(std::size_t(to - payload.data()) + size);
    if (payload.size() * 10 > task.size() * 9) return keep();

    // Nothing near the largest number comes of what is far from it.
    if (!fed && most < kSmall) return payload;
    uniform::decode(wide_dtype, plane({payload.data(), payload.size()}), n, settings, y.data());
    rotate<C>(y, axes, vectors, true);
    if (!all_finite<C>(y)) return keep();
    if (!left) return payload;
    for (std::size_t i = 0; i < n; ++i) meant[i] -= y[i];
    if (!all_finite<C>(meant)) return keep();
    std::ranges::copy(meant, left);
    if constexpr (sizeof(typename E::Stored) == 2) leave_rounding<E>(task, y.data(), left);
    return payload;
}

std::optional<Buffer> Chain::encode(const Task& task, std::string_view name, const void* x,
                                    const Fed* fed) const {
    return visit(task.dtype, [&]<class E>(E) { return encode_as<E>(task, name, x, fed); });
}

void decode_chained(std::string_view text, const History* history, const Described& tensor,
                    Octets payload, const void* base, void* y) {
    const auto chain = parsed_chain(text);
    if (!chain)
        fail(FEDSZ_ERROR_UNAVAILABLE, "a chain that this library does not decode: '", text, "'");
    const bool in_basis = !chain->history.empty();
    if (in_basis) {
        std::array<char, 16> digits;
        if (!history)
            fail(FEDSZ_ERROR_REFERENCE, "coefficients are in the basis of history ",
                 chain->history, "; there is none here");
        if (history->shown(digits) != chain->history)
            fail(FEDSZ_ERROR_REFERENCE, "coefficients are in the basis of history ",
                 chain->history, "; this is ", history->shown(digits));
    }
    const auto dtype = Dtype(tensor.dtype);
    visit(wide(dtype), [&]<class E>(E) {
        if constexpr (sizeof(typename E::Stored) > 2) {
            using C = typename E::Compute;
            const std::size_t n = tensor.count;
            Vector<C> values(is_wide(dtype) ? 0 : n);
            const std::span<C> decoded(is_wide(dtype) ? static_cast<C*>(y) : values.data(), n);
            uniform::decode(E::dtype, plane(payload), n, {0, 1, nullptr}, decoded.data());
            const Axes axes(tensor.shape);
            if (in_basis) rotate(decoded, axes, history->vectors(tensor.name, axes), true);
            if (!all_finite<C>(decoded))
                fail(FEDSZ_ERROR_CORRUPT, "an element that is not finite");
            place(dtype, base, decoded.data(), n, y);
        }
    });
}

}  // namespace fedsz::library

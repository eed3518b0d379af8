// libFuzzer harness: make fuzz. All levels of kernels must agree, on what they refuse too. Inputs:
//
//   0, count 4, payload: is to be decoded and added up, as each dtype
//   1, dtype 1, effort 1, rows 2, planes 1, width 1, bound 8, edits 1, edits times (where 4, bits
//   1),
//      elements: are to be encoded. Without edits they must decode within the bound; with edits
//      some bytes of their payload are flipped, which gets further into a decoder than most inputs
//      do.
//   2, as 1: but the elements are the outer product of the first `rows` given and the others

#include "fuzz.hpp"

#include <numeric>
#include <optional>
#include <type_traits>

#include "corrupt.hpp"
#include "payload.hpp"
#include "uniform.hpp"

namespace {

using namespace fedsz;
using namespace fedsz::uniform;
using fuzz::expect;

constexpr std::size_t kMost = 1 << 17;  // elements, for the fuzzer's speed
constexpr double kWeight = 1.0 / 3;

// What `work` fills n values of T with, all of them 1 before; nothing if it refuses the payload.
template <class T, class Work>
std::optional<std::vector<T>> filled(std::size_t n, const Work& work) {
    std::vector<T> values(n, T(1));
    try {
        work(values.data());
    } catch (const CorruptPayload&) {
        return std::nullopt;
    }
    return values;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
    return a.size() == b.size() &&
           (a.empty() || std::memcmp(&a[0], &b[0], a.size() * sizeof(T)) == 0);
}

// Differences are of these alone: a base is an array of as many ones, here.
template <class E>
constexpr bool kDiffers = std::is_same_v<typename E::Stored, typename E::Compute>;

// Decodes and accumulates at every level.
template <class E>
std::optional<std::vector<typename E::Stored>> decode_everywhere(uniform::Bytes payload,
                                                                 std::size_t n) {
    using T = typename E::Stored;
    using C = typename E::Compute;
    std::optional<std::vector<T>> first;
    for (std::size_t i = 0; i < levels<Built>().count; ++i) {
        const Settings settings{0, 1, levels<Built>().level[i]};
        auto y = filled<T>(n, [&](T* to) { decode(E::dtype, payload, n, settings, to); });
        const auto sums =
            filled<C>(n, [&](C* to) { accumulate(E::dtype, payload, n, kWeight, settings, to); });
        expect(sums.has_value() == y.has_value());
        for (std::size_t at = 0; y && at < n; ++at) {
            const C sum = C(1) + C(kWeight) * E::widen((*y)[at]);
            expect(sum == (*sums)[at] || (std::isnan(sum) && std::isnan((*sums)[at])));
        }
        if constexpr (kDiffers<E>) {
            const std::vector<T> base(n, T(1));
            const auto onto = filled<T>(
                n, [&](T* to) { decode(E::dtype, payload, n, settings, to, base.data()); });
            expect(onto.has_value() == y.has_value());
            for (std::size_t at = 0; y && at < n; ++at) {
                const T moved = T(1) + (*y)[at];
                expect(moved == (*onto)[at] || (std::isnan(moved) && std::isnan((*onto)[at])));
            }
        }
        if (i == 0) {
            first = std::move(y);
        } else {
            expect(first.has_value() == y.has_value());
            expect(!y || same_bits(*first, *y));
        }
    }
    return first;
}

// Coding differences is coding an array of them.
template <class E>
void expect_differences(const std::vector<typename E::Stored>& x, const Geometry& geometry,
                        double bound, const Settings& settings) {
    using T = typename E::Stored;
    const std::vector<T> base(x.size(), T(1));
    std::vector<T> differences(x);
    for (T& v : differences) v = v - T(1);
    std::vector<std::uint8_t> made(capacity(E::dtype, x.size())), direct(made.size());
    const Encoded a = encode(E::dtype, differences.data(), geometry, bound, settings, made);
    std::vector<T> left(x);
    const Encoded b = encode(E::dtype, x.data(), geometry, bound, settings, direct, base.data(), 0,
                             {}, left.data());
    made.resize(a.size);
    direct.resize(b.size);
    expect(same_bits(made, direct) && a.max_error == b.max_error);

    const auto y = filled<T>(x.size(), [&](T* to) {
        decode(E::dtype, uniform::Bytes(direct), x.size(), settings, to, base.data());
    });
    expect(y.has_value());
    for (std::size_t i = 0; y && i < x.size(); ++i) {
        const T lost = x[i] - (*y)[i];
        expect(lost == left[i] || (std::isnan(lost) && std::isnan(left[i])));
    }

    const Comparison c = compare(E::dtype, x.data(), base.data(), x.size(), {true, true}, settings);
    for (std::size_t i = 0; i < x.size(); ++i)
        expect(!(x[i] < c.low || x[i] > c.high || differences[i] < c.least ||
                 differences[i] > c.greatest));
}

// The payload, which is the same at every level, and as long as it says.
template <class E>
std::vector<std::uint8_t> encode_everywhere(const std::vector<typename E::Stored>& x,
                                            const Geometry& geometry, double bound, unsigned effort,
                                            double& max_error) {
    std::vector<std::uint8_t> first;
    for (std::size_t i = 0; i < levels<Built>().count; ++i) {
        const Settings settings{effort, 1, levels<Built>().level[i]};
        std::vector<std::uint8_t> payload(capacity(E::dtype, x.size()));
        const Encoded encoded = encode(E::dtype, x.data(), geometry, bound, settings, payload);
        payload.resize(encoded.size);
        payload.shrink_to_fit();
        if constexpr (kDiffers<E>) expect_differences<E>(x, geometry, bound, settings);
        if (i == 0) {
            first = std::move(payload);
            max_error = encoded.max_error;
        } else {
            expect(same_bits(first, payload) && encoded.max_error == max_error);
        }
    }
    return first;
}

template <class E>
void encode_and_decode(fuzz::Input& input, bool product) {
    using T = typename E::Stored;
    const unsigned effort = input.take<std::uint8_t>() % 10;
    const std::size_t rows = input.take<std::uint16_t>();
    unsigned planes = input.take<std::uint8_t>();
    const unsigned width = input.take<std::uint8_t>();
    const auto bound = input.take<double>();
    if (!(bound >= 0)) return;
    struct Edit {
        std::uint32_t where;
        std::uint8_t bits;
    };
    std::vector<Edit> edits(input.take<std::uint8_t>() % 4);
    for (Edit& edit : edits) edit = {input.take<std::uint32_t>(), input.take<std::uint8_t>()};

    std::vector<T> x = input.elements<T>();
    if (planes < 4 || product) planes = 1;
    Geometry geometry{rows, rows == 0 ? 0 : x.size() / rows / planes * planes, planes,
                      std::gcd(width, planes)};
    if (product) {
        geometry = {std::min(rows, x.size()), x.size() - std::min(rows, x.size()), 1, 1};
        if (geometry.size() > kMost) return;
        const std::vector<T> factors = std::move(x);
        x.clear();
        for (std::size_t r = 0; r < geometry.rows; ++r)
            for (std::size_t c = 0; c < geometry.columns; ++c)
                x.push_back(E::narrow(E::widen(factors[r]) * E::widen(factors[geometry.rows + c])));
    }
    x.resize(geometry.size());

    double max_error = 0;
    std::vector<std::uint8_t> payload = encode_everywhere<E>(x, geometry, bound, effort, max_error);
    for (const Edit& edit : edits) payload[edit.where % payload.size()] ^= edit.bits;
    const auto y = decode_everywhere<E>(payload, x.size());
    if (!edits.empty()) return;
    expect(y.has_value());
    fuzz::expect_within(x, *y, bound, max_error, E::widen);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    fuzz::Input input(data, size);
    const unsigned kind = input.take<std::uint8_t>() % 3;
    if (kind == 0) {
        const std::size_t n = input.take<std::uint32_t>();
        if (n > kMost) return 0;
        for (const Dtype dtype : {Dtype::float32, Dtype::float64, Dtype::float16, Dtype::bfloat16})
            visit(dtype, [&]<class E>(E) { decode_everywhere<E>(as_octets(input.rest()), n); });
    } else {
        visit(Dtype(input.take<std::uint8_t>() % 4),
              [&]<class E>(E) { encode_and_decode<E>(input, kind == 2); });
    }
    return 0;
}

// The element types: how each is stored, computed with, and ordered.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace fedsz::uniform {

enum class Dtype : std::uint8_t { float32 = 0, float64 = 1, float16 = 2, bfloat16 = 3 };

// Bytes of an element, and of a sum of such elements.
inline std::size_t size_of(Dtype dtype) {
    return dtype == Dtype::float64 ? 8 : dtype == Dtype::float32 ? 4 : 2;
}
inline std::size_t size_of_sum(Dtype dtype) { return dtype == Dtype::float64 ? 8 : 4; }

// Stored: the element in memory. Compute: the type of the grid's arithmetic. Bits: an integer as
// wide as Compute. Key: a signed integer as wide as Stored, ordered as the values are.
struct Float32 {
    using Stored = float;
    using Compute = float;
    using Bits = std::uint32_t;
    using Key = std::int32_t;
    static constexpr Dtype dtype = Dtype::float32;
    static constexpr Key infinity = 0x7F800000;
    static constexpr int digits = 24;  // of the significand

    static float widen(float x) { return x; }
    static float narrow(float y) { return y; }
};

struct Float64 {
    using Stored = double;
    using Compute = double;
    using Bits = std::uint64_t;
    using Key = std::int64_t;
    static constexpr Dtype dtype = Dtype::float64;
    static constexpr Key infinity = 0x7FF0000000000000;
    static constexpr int digits = 53;

    static double widen(double x) { return x; }
    static double narrow(double y) { return y; }
};

// The narrow types are held as their bits, and converted by arithmetic that vectorises everywhere.
struct Float16 {
    using Stored = std::uint16_t;
    using Compute = float;
    using Bits = std::uint32_t;
    using Key = std::int16_t;
    static constexpr Dtype dtype = Dtype::float16;
    static constexpr Key infinity = 0x7C00;
    static constexpr int digits = 11;

    static float widen(std::uint16_t h) {
        const std::uint32_t magnitude = std::uint32_t(h & 0x7FFF) << 13;
        const std::uint32_t sign = std::uint32_t(h & 0x8000) << 16;
        // Moved to float32's exponent by a multiplication, which is exact for subnormals too.
        const std::uint32_t finite =
            std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
        return std::bit_cast<float>(sign |
                                    (magnitude >= 0x0F800000 ? magnitude | 0x7F800000 : finite));
    }

    // Rounds to nearest, ties to even.
    static std::uint16_t narrow(float y) {
        const std::uint32_t bits = std::bit_cast<std::uint32_t>(y);
        const std::uint32_t sign = (bits >> 16) & 0x8000;
        const std::uint32_t magnitude = bits & 0x7FFFFFFF;
        // Below 2^-14 the addition of 0.5 leaves the 10 bits of a subnormal, rounded.
        const std::uint32_t subnormal =
            std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3F000000;
        const std::uint32_t normal =
            (magnitude - 0x38000000 + 0xFFF + ((magnitude >> 13) & 1)) >> 13;
        const std::uint32_t finite = magnitude < 0x38800000 ? subnormal : normal;
        const std::uint32_t infinite = magnitude > 0x7F800000 ? 0x7E00 : 0x7C00;
        return std::uint16_t(sign | (magnitude >= 0x477FF000 ? infinite : finite));
    }
};

struct BFloat16 {
    using Stored = std::uint16_t;
    using Compute = float;
    using Bits = std::uint32_t;
    using Key = std::int16_t;
    static constexpr Dtype dtype = Dtype::bfloat16;
    static constexpr Key infinity = 0x7F80;
    static constexpr int digits = 8;

    static float widen(std::uint16_t b) { return std::bit_cast<float>(std::uint32_t(b) << 16); }

    // Rounds to nearest, ties to even; the grid never asks for the conversion of a NaN.
    static std::uint16_t narrow(float y) {
        const std::uint32_t bits = std::bit_cast<std::uint32_t>(y);
        return std::uint16_t((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
    }
};

// An integer that orders as the values do: -Inf lowest, then ascending, NaN at the ends.
template <class E>
inline typename E::Key key(typename E::Stored x) {
    using Key = typename E::Key;
    const Key bits = std::bit_cast<Key>(x);
    constexpr Key rest = std::numeric_limits<Key>::max();
    return Key(bits ^ ((bits >> (8 * sizeof(Key) - 1)) & rest));
}

// Its inverse, widened.
template <class E>
inline typename E::Compute value(typename E::Key k) {
    using Key = typename E::Key;
    constexpr Key rest = std::numeric_limits<Key>::max();
    const Key bits = Key(k ^ ((k >> (8 * sizeof(Key) - 1)) & rest));
    return E::widen(std::bit_cast<typename E::Stored>(bits));
}

}  // namespace fedsz::uniform

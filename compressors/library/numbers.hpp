// Floats of four dtypes as doubles and float32, and how far they lie apart.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "element.hpp"
#include "payload.hpp"

namespace fedsz::library {

using uniform::Dtype;
using uniform::visit;

// What differences of a dtype are made in.
inline Dtype wide(Dtype dtype) { return dtype == Dtype::float64 ? dtype : Dtype::float32; }
inline bool is_wide(Dtype dtype) { return wide(dtype) == dtype; }

// Binary exponent of the least normal number, bits behind the point, and the largest number.
struct Precision {
    int lowest, bits;
    double largest;
};
inline Precision precision_of(Dtype dtype) {
    switch (dtype) {
        case Dtype::float64: return {-1022, 52, std::numeric_limits<double>::max()};
        case Dtype::float16: return {-14, 10, 65504};
        case Dtype::bfloat16: return {-126, 7, 0x1.FEp127};
        default: return {-126, 23, std::numeric_limits<float>::max()};
    }
}

// Half the distance between the numbers of a dtype around `largest`: the most that rounding a
// number of at most that magnitude can change it.
inline double half_ulp(double largest, Dtype dtype) {
    const Precision precision = precision_of(dtype);
    int exponent = largest == 0 ? precision.lowest + 1 : 0;
    if (std::isfinite(largest) && largest != 0) std::frexp(largest, &exponent);
    return std::ldexp(0.5, std::max(exponent - 1, precision.lowest) - precision.bits);
}

// y as an element of a narrower dtype; what is finite stays finite. A NaN keeps the upper bits of
// its significand in float16, or 1 for none, and none in bfloat16: as numpy and ml_dtypes have it.
template <class E>
typename E::Stored narrowed(float y) {
    const auto bits = E::narrow(y);
    if (std::isnan(y)) {
        const auto from = std::bit_cast<std::uint32_t>(y);
        const std::uint32_t sign = from >> 16 & 0x8000, upper = from >> 13 & 0x3FF;
        if (E::dtype == Dtype::bfloat16) return typename E::Stored(sign | 0x7FC0);
        return typename E::Stored(sign | 0x7C00 | (upper ? upper : 1));
    }
    if (std::isinf(E::widen(bits)) && !std::isinf(y)) return typename E::Stored(bits - 1);
    return bits;
}

}  // namespace fedsz::library

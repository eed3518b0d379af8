// Decoded numbers as elements of a tensor.
#pragma once

#include <cmath>
#include <cstddef>
#include <limits>

#include "bound.hpp"
#include "numbers.hpp"

namespace fedsz::library {

// y = values, or base + values, as elements of a dtype; what is finite stays finite. `y` may be
// where the values are. Values are of float32, or of the dtype that differences are made in.
template <class V>
void place(Dtype dtype, const void* base, const V* values, std::size_t n, void* y) {
    visit(dtype, [&]<class E>(E) {
        using C = typename E::Compute;
        auto* to = static_cast<typename E::Stored*>(y);
        if constexpr (sizeof(typename E::Stored) > 2) {
            const auto* from = static_cast<const C*>(base);
            for (std::size_t i = 0; i < n; ++i) {
                const C value = C(values[i]);
                C whole = from ? from[i] + value : value;
                if (std::isinf(whole) && std::isfinite(value) && std::isfinite(from[i]))
                    whole = std::copysign(std::numeric_limits<C>::max(), whole);
                to[i] = whole;
            }
        } else if constexpr (sizeof(V) == sizeof(float)) {
            if (base) return move(dtype, base, values, n, y);
            for (std::size_t i = 0; i < n; ++i) to[i] = narrowed<E>(values[i]);
        }
    });
}

}  // namespace fedsz::library

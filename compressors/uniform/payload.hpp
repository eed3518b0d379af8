// The fields of a payload that both directions share.
#pragma once

#include <cstdint>

#include "kernels.hpp"
#include "uniform.hpp"

namespace fedsz::uniform {

enum class Mode : std::uint8_t {
    stored = 0,    // the elements as they are
    constant = 1,  // all are base * step
    blocks = 2,    // tokens in bit planes, as wide as each block needs
    coded = 3,     // tokens by rANS
    sparse = 4,    // tokens that are not the usual one, and the gaps between them
    quads = 5,     // tokens of four rows at a time by rANS
};

inline constexpr unsigned kMaxShift = 14;  // bits of a code below its token

// An element stored exactly: not finite, too far from the grid, or out of the tokens' window.
template <class E>
struct Exception {
    std::size_t position;
    typename E::Stored value;
};

const Kernels& kernels_of(const Settings& settings);

template <class E>
Operands<E> operands_of(const void* x, const void* base, const Residual& residual) {
    using T = typename E::Stored;
    return {static_cast<const T*>(x), static_cast<const T*>(base),
            static_cast<const T*>(residual.elements), typename E::Compute(residual.weight)};
}

// What uniform.hpp offers, for floats as IEEE 754 has them: uniform.cpp sees to that.
Encoded encode_elements(Dtype dtype, const void* x, const void* base, const Geometry& geometry,
                        double bound, const Settings& settings, std::span<std::uint8_t> payload,
                        double step, const Residual& residual, void* left);
void decode_elements(Dtype dtype, Bytes payload, std::size_t n, const Settings& settings, void* y,
                     const void* base);
std::unique_ptr<Opened> open_elements(Dtype dtype, Bytes payload, std::size_t n,
                                      const Settings& settings, const void* base);
Comparison compare_elements(Dtype dtype, const void* x, const void* base, std::size_t n,
                            Asked asked, const Settings& settings, const Residual& residual);
double value_range_of_elements(Dtype dtype, const void* x, std::size_t n, const Settings& settings);
double standard_deviation_of_elements(Dtype dtype, const void* x, std::size_t n,
                                      const Settings& settings);
double energy_of_elements(Dtype dtype, const void* x, const void* base, std::size_t n, bool masked,
                          const Settings& settings);

// Calls f with the element type of `dtype`. A small encoder has code for one alone.
template <class F>
auto visit([[maybe_unused]] Dtype dtype, const F& f) {
#ifndef FEDSZ_FLOAT32_ONLY
    switch (dtype) {
        case Dtype::float64: return f(Float64{});
        case Dtype::float16: return f(Float16{});
        case Dtype::bfloat16: return f(BFloat16{});
        default: break;
    }
#endif
    return f(Float32{});
}

}  // namespace fedsz::uniform

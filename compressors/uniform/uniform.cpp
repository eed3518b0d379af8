#include "uniform.hpp"

#include "floats.hpp"
#include "payload.hpp"

namespace fedsz::uniform {

// Calls into other source files: within one, arithmetic could move out of the guard's scope.

std::size_t capacity(Dtype dtype, std::size_t n) { return n * size_of(dtype) + 64; }

Encoded encode(Dtype dtype, const void* x, const Geometry& geometry, double bound,
               const Settings& settings, std::span<std::uint8_t> payload, const void* base) {
    const DefaultFloats floats;
    return encode_elements(dtype, x, base, geometry, bound, settings, payload);
}

void decode(Dtype dtype, Bytes payload, std::size_t n, const Settings& settings, void* y,
            const void* base) {
    const DefaultFloats floats;
    decode_elements(dtype, payload, n, settings, y, base);
}

void accumulate(Dtype dtype, Bytes payload, std::size_t n, double weight, const Settings& settings,
                void* sums) {
    const DefaultFloats floats;
    accumulate_elements(dtype, payload, n, weight, settings, sums);
}

Comparison compare(Dtype dtype, const void* x, const void* base, std::size_t n, bool deviation,
                   const Settings& settings) {
    const DefaultFloats floats;
    return compare_elements(dtype, x, base, n, deviation, settings);
}

}  // namespace fedsz::uniform

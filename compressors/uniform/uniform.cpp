#include "uniform.hpp"

#include "floats.hpp"
#include "payload.hpp"

namespace fedsz::uniform {

// Calls into other source files: within one, arithmetic could move out of the guard's scope.

std::size_t capacity(Dtype dtype, std::size_t n) { return n * size_of(dtype) + 64; }

Encoded encode(Dtype dtype, const void* x, const Geometry& geometry, double bound,
               const Settings& settings, std::span<std::uint8_t> payload) {
    const DefaultFloats floats;
    return encode_elements(dtype, x, geometry, bound, settings, payload);
}

void decode(Dtype dtype, Bytes payload, std::size_t n, const Settings& settings, void* y) {
    const DefaultFloats floats;
    decode_elements(dtype, payload, n, settings, y);
}

void accumulate(Dtype dtype, Bytes payload, std::size_t n, double weight, const Settings& settings,
                void* sums) {
    const DefaultFloats floats;
    accumulate_elements(dtype, payload, n, weight, settings, sums);
}

}  // namespace fedsz::uniform

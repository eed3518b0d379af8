#include "decoding.hpp"

#include "bound.hpp"
#include "uniform.hpp"

namespace fedsz::library {

void decode_uniform(Octets payload, Dtype dtype, std::size_t n, const void* base, void* y) {
    const uniform::Settings settings{0, 1, nullptr};
    if (!base || is_wide(dtype)) return uniform::decode(dtype, payload, n, settings, y, base);
    Vector<float> difference(n);
    uniform::decode(Dtype::float32, payload, n, settings, difference.data());
    move(dtype, base, difference.data(), n, y);
}

}  // namespace fedsz::library

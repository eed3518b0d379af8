// Payloads of `uniform` -> elements.
#pragma once

#include <cstddef>

#include "format.hpp"
#include "numbers.hpp"

namespace fedsz::library {

// n elements of a dtype from a payload; with a base, of differences from it. Throws what
// uniform::decode() does.
void decode_uniform(Octets payload, Dtype dtype, std::size_t n, const void* base, void* y);

}  // namespace fedsz::library

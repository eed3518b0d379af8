// `uniform`: a uniform quantiser and static rANS with contexts from scales. docs/format.md has the
// payload bit by bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "bytes.hpp"
#include "contexts.hpp"
#include "element.hpp"

namespace fedsz::uniform {

struct Settings {
    unsigned effort = 5;               // 0 (fastest) to 9 (smallest)
    unsigned threads = 1;              // at most; decides nothing but time
    const Kernels* kernels = nullptr;  // null: the best this machine has
};

struct Encoded {
    std::size_t size;  // of the payload
    double max_error;  // the largest |x - y| of all finite elements
};

// What encode() may need for n elements, whatever they are.
std::size_t capacity(Dtype dtype, std::size_t n);

// Codes geometry.size() elements at x so that none moves by more than `bound` (0 or more) once it
// has been decoded to its own dtype; NaN and infinities come back bit by bit.
Encoded encode(Dtype dtype, const void* x, const Geometry& geometry, double bound,
               const Settings& settings, std::span<std::uint8_t> payload);

// Throws CorruptPayload for a payload that encode() does not write for n elements of that dtype.
void decode(Dtype dtype, Bytes payload, std::size_t n, const Settings& settings, void* y);

// Adds weight * y to n sums, of float64 for float64 and of float32 for all others, as decoding,
// multiplying and adding would, but without an array for y.
void accumulate(Dtype dtype, Bytes payload, std::size_t n, double weight, const Settings& settings,
                void* sums);

}  // namespace fedsz::uniform

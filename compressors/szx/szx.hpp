// SZx: constant blocks and truncated mantissas, with the bound kept.
//
// The algorithm is that of Yu et al., "SZx: An ultra-fast error-bounded lossy compressor for
// scientific datasets", HPDC 2022; the payload is described in docs/format.md, "szx".
//
// All of it wants the default floating-point environment: see DefaultFloats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace fedsz::szx {

inline constexpr std::size_t block_length = 128;  // elements; the last block may have fewer

// How a block is written.
struct Block {
    float middle;       // of its range; 0 in an exact block
    std::uint8_t bits;  // kept of each element: 0 in a constant block, 32 in an exact one
};

// How an array is written, and what comes of that.
struct Plan {
    std::vector<Block> blocks;  // none when the array is stored as it is
    std::size_t size;           // of the payload, in bytes
    double max_error;           // of a finite element; NaN and infinities are exact
};

// Decides how to write `x` so that no finite element moves by more than `bound`, which is 0 or more.
Plan plan(std::span<const float> x, double bound);

// Writes the payload of `x` into `payload`, which has the size that `plan` gave.
//
// Throws std::runtime_error when `x` is no longer what was planned.
void write(std::span<const float> x, const Plan& plan, std::span<std::byte> payload);

// Throws CorruptPayload when `payload` is too short for `n` elements: to be asked before memory is
// taken for them. What passes has at least one byte for each 125 of theirs.
void check_size(std::span<const std::byte> payload, std::size_t n);

// Decodes `payload` into `x`. Throws CorruptPayload when it is not one of x.size() elements.
void decode(std::span<const std::byte> payload, std::span<float> x);

}  // namespace fedsz::szx

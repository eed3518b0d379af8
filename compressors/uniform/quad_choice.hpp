// Whether tokens had better be coded as quads, and how.
#pragma once

#include <optional>

#include "analysis.hpp"
#include "memory.hpp"

namespace fedsz::uniform {

struct QuadChoice {
    std::uint8_t usual;
    Vector<std::uint8_t> quads;
    Model model;
    double bits;  // of quads, other tokens, tables and classes, by estimate
};

// Quads for tokens whose classes are those of `full`, if they take hardly more bits than by `plain`.
std::optional<QuadChoice> choose_quads(const Kernels& kernels, std::span<const std::uint8_t> tokens,
                                       const Choice& plain, const Contexts& full, unsigned threads);

}  // namespace fedsz::uniform

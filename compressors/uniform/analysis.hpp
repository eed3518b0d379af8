// What the encoder finds out about a tensor before it codes it.
#pragma once

#include <cstdint>
#include <span>

#include "contexts.hpp"
#include "memory.hpp"
#include "model.hpp"
#include "tables.hpp"

namespace fedsz::uniform {

// Classes from the sums of magnitudes of rows and columns of n elements (see survey.hpp): a third
// of an octave of scale each, at most `most` of them.
void classify(std::span<const std::uint64_t> rows, std::span<const std::uint64_t> columns,
              std::size_t n, unsigned most, Contexts& contexts);

// Contexts and the counts that go with them: one table for each run of neighbouring classes.
struct Choice {
    Contexts contexts;
    Vector<Counts> counts;  // of each table
    double bits;                 // of tokens, tables and classes, by estimate
};

// The cheapest way to code tokens that were counted in the contexts `full`: with all its contexts,
// or without its classes, its neighbours or both.
Choice choose(const Contexts& full, std::span<const Counts> counts);

// The width of probabilities for so many tokens, which take so many bits. Where few symbols make up
// nearly all tokens, narrow ones cost 0.2 %, and a first-level cache has room for their tables.
unsigned probability_bits(std::size_t tokens, double bits);

// Row and column classes as they are coded, each the difference from the one before.
Vector<std::uint8_t> differences(const Contexts& contexts);

}  // namespace fedsz::uniform

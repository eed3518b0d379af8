// Runs of symbols beside the tokens: classes, and factors of a prediction.
#pragma once

#include <span>

#include "memory.hpp"
#include "runs.hpp"

namespace fedsz::uniform {

// Symbols with the table that each belongs to, below `tables`; null for one table.
void write_run(std::span<const std::uint8_t> symbols, const std::uint8_t* contexts, unsigned tables,
               const Kernels& kernels, Writer& writer);

// n symbols, not all of which may fit into what is left: throws CorruptPayload before it takes
// memory for more than that could hold.
Vector<std::uint8_t> read_run(Reader& reader, std::size_t n, const std::uint8_t* contexts,
                                   unsigned tables, const Kernels& kernels);

}  // namespace fedsz::uniform

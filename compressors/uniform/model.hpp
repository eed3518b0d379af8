// All that a decoder must know before the first token, as it stands in a payload.
#pragma once

#include <optional>

#include "bytes.hpp"
#include "contexts.hpp"
#include "lowrank.hpp"
#include "memory.hpp"
#include "quads.hpp"
#include "runs.hpp"
#include "tables.hpp"

namespace fedsz::uniform {

// What is coded instead of tokens, where a symbol is a quad. The last table is that of the tokens
// behind digits kOther.
struct QuadModel {
    QuadRows rows;
    Contexts contexts;  // of quads
    Vector<QuadTable> tables;
};

struct Model {
    Contexts contexts;
    std::optional<Factors> factors{};  // where the side is the prediction's fraction
    Vector<Table> tables{};
    unsigned bits = kMaxBits;  // of the tables' probabilities
    unsigned lanes = kLanes;
    std::optional<QuadModel> quads{};

    const Contexts& of_symbols() const { return quads ? quads->contexts : contexts; }
    Vector<Frequencies> frequencies() const;
};

void write(const Model& model, const Kernels& kernels, Writer& writer);

// Throws CorruptPayload for a model that does not fit n elements.
Model read_model(Reader& reader, const Kernels& kernels, std::size_t n, bool quads);

}  // namespace fedsz::uniform

// All that a decoder must know before the first token, as it stands in a payload.
#pragma once

#include <optional>
#include <vector>

#include "bytes.hpp"
#include "contexts.hpp"
#include "lowrank.hpp"
#include "runs.hpp"
#include "tables.hpp"

namespace fedsz::uniform {

struct Model {
    Contexts contexts;
    std::optional<Factors> factors;  // where the side is the prediction's fraction
    std::vector<Table> tables;
    unsigned bits = kMaxBits;  // of the tables' probabilities
    unsigned lanes = kLanes;
};

void write(const Model& model, const Kernels& kernels, Writer& writer);

// Throws CorruptPayload for a model that does not fit n elements.
Model read_model(Reader& reader, const Kernels& kernels, std::size_t n);

}  // namespace fedsz::uniform

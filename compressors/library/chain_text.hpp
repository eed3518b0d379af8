// The chains of methods that this library knows, as streams spell them (docs/format.md, "Chains"):
//
//   [eigen[:of=HISTORY]>]uniform[:effort=0..9]@[rel:|abs:|std:|step:]NUMBER
#pragma once

#include <optional>
#include <string_view>

namespace fedsz::library {

enum class BoundOf { range, nothing, deviation, step };

struct ChainText {
    bool eigen = false;
    std::string_view history;  // what `of` says
    std::string_view coder;    // from "uniform" on
    unsigned effort = 5;
    BoundOf bound_of = BoundOf::range;
    double bound = 0;  // times that, or the bound itself
};

// Nothing for another chain, and for numbers that decimal() does not know.
std::optional<ChainText> parsed_chain(std::string_view text);

// A number such as 0.25 or 1e-3, rounded as IEEE 754 wants it, in any locale. Nothing for one of
// more than 15 digits or beyond 10^22 either way: below, one operation on exact numbers gives it
// (Clinger, How to read floating point numbers accurately, 1990).
std::optional<double> decimal(std::string_view text);

}  // namespace fedsz::library

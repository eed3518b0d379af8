// Error feedback: what earlier rounds left out of a tensor, and what this one does. See
// fedsz/core/feedback.py and UpdateEncoder.
#pragma once

#include <cstddef>
#include <optional>

#include "bound.hpp"

namespace fedsz::library {

struct Fed {
    const void* residual;  // or null
    double weight;
    void* left;  // or null
};

// As encode_within() of the tensor with its residual. Where nothing is coded, `left` is
// unspecified.
std::optional<Coded> encode_fed(const Task& task, const void* x, const Fed& fed);

// A tensor that goes exactly, with its residual: all that its dtype holds of it arrives. No buffer
// if it has none. Writes what is left.
Buffer exact_with(Dtype dtype, const void* x, const Fed& fed, std::size_t n);

}  // namespace fedsz::library

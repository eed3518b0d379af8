// How much memory a writer can need.
#pragma once

#include <cstddef>
#include <span>

#include "fedsz.h"

namespace fedsz::library {

// For these tensors, whatever their values; throws Failure for some that no stream holds.
std::size_t workspace_of(const fedsz_settings& settings, std::span<const fedsz_tensor> tensors);

}  // namespace fedsz::library

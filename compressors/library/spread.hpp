// How far a tensor's values lie apart, in float64 and without NaN and infinities.
#pragma once

#include <cstddef>

#include "element.hpp"

namespace fedsz::library {

// Greatest less least; 0 if there are none.
double value_range(uniform::Dtype dtype, const void* x, std::size_t n);

// The standard deviation; 0 if there are none. Sums are added up as numpy adds them: streams of a
// bound by it are Python's.
double standard_deviation(uniform::Dtype dtype, const void* x, std::size_t n);

}  // namespace fedsz::library

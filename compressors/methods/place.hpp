// The points of fedsz/core/grid.py, once for each instruction set; all compute the same.
#pragma once

#include <cstddef>

#include "levels.hpp"

namespace fedsz::methods {

// So many elements that kernels are called for. No pointer is null.
struct Placing {
    const float *x, *residual, *start;
    float weight;
    double step;
    float *points, *left;
};

struct PlaceKernels {
    const char* name;
    // Does as nearest_points, and says whether float32 holds all points.
    bool (*place)(const Placing& placing, std::size_t n);
};

struct Built {
    static const PlaceKernels baseline, avx2, avx512;
};

}  // namespace fedsz::methods

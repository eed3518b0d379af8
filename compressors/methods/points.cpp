#include <algorithm>
#include <array>
#include <stdexcept>

#include "methods.hpp"
#include "place.hpp"

namespace fedsz::methods {

namespace {

// Elements at a time, after which a tensor that is on no lattice is left.
constexpr std::size_t kBlock = 1 << 12;
using Block = std::array<float, kBlock>;

// What stands for a start that is not there, and for a residual: -0 changes no number, be it a 0.
constexpr Block kNoStart{};
constexpr Block kNoResidual = [] {
    Block zeros;
    zeros.fill(-0.0f);
    return zeros;
}();

void check_size(std::size_t size, std::size_t n, const char* what) {
    if (size != 0 && size != n) throw std::invalid_argument(what);
}

}  // namespace

bool nearest_points(std::span<const float> x, std::span<const float> residual, float weight,
                    std::span<const float> start, double step, std::span<float> points,
                    std::span<float> left, const std::string& level) {
    const std::size_t n = x.size();
    check_size(residual.size(), n, "a residual must have as many elements as x");
    check_size(start.size(), n, "a start must have as many elements as x");
    check_size(left.size(), n, "what is left must have as many elements as x");
    if (points.size() != n) throw std::invalid_argument("there must be as many points as x");
    const PlaceKernels* named = levels<Built>().named(level);
    const PlaceKernels& kernels = named ? *named : levels<Built>().best();
    Block unwanted;
    for (std::size_t at = 0; at < n; at += kBlock) {
        const auto from = [at](auto some, auto* instead) {
            return some.empty() ? instead : some.data() + at;
        };
        const Placing placing{x.data() + at,
                              from(residual, kNoResidual.data()),
                              from(start, kNoStart.data()),
                              residual.empty() ? 1.0f : weight,
                              step,
                              points.data() + at,
                              from(left, unwanted.data())};
        if (!kernels.place(placing, std::min(kBlock, n - at))) return false;
    }
    return true;
}

bool comes_back(std::span<const float> x, std::span<const float> base) {
    if (x.size() != base.size()) throw std::invalid_argument("there must be as many x as base");
    std::uint32_t misses = 0;
    for (std::size_t at = 0; at < x.size() && misses == 0; at += kBlock) {
        const std::size_t end = std::min(x.size(), at + kBlock);
        for (std::size_t i = at; i < end; ++i)
            misses |= std::uint32_t(base[i] + (x[i] - base[i]) != x[i]);
    }
    return misses == 0;
}

}  // namespace fedsz::methods

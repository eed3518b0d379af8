// What broadcasts have shown of the steps of a model's tensors, and the bases that follow from it:
// what fedsz/methods/eigen.py says.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>

#include "eigen.hpp"
#include "reference.hpp"

namespace fedsz::library {

// The axes along which a tensor has bases: of none with fewer than two dimensions.
struct Axes {
    explicit Axes(Shape shape);

    std::size_t squares() const;  // elements of all their blocks' matrices

    std::array<eigen::Axis, 3> axis;
    std::size_t count = 0;
};

class History {
public:
    // Goes on from one model to the next. If that fails, nothing has changed.
    void advance(const Reference& before, const Reference& now);

    // Of all models that have gone in, in their order; nothing of none.
    const std::optional<Digest>& digest() const { return digest_; }

    // Its digest as chains say it, and as many characters of `digits`.
    std::string_view shown(std::array<char, 16>& digits) const;

    // The vectors of a tensor, axis by axis; empty where there is no basis.
    std::span<const float> vectors(std::string_view name, const Axes& axes) const;

private:
    struct Known {
        Vector<char> name;
        Axes axes;
        Vector<float> products, vectors;
    };
    std::string_view name_of(std::size_t i) const {
        return {known_[i].name.data(), known_[i].name.size()};
    }
    const Known* find(std::string_view name, const Axes& axes) const;
    std::optional<Known> grown(const Described& tensor, const void* before, const void* now) const;

    Vector<Known> known_;
    NameIndex index_;
    std::optional<Digest> digest_;
};

// Multiplies a tensor's elements by its vectors: to coefficients, or back.
template <class T>
void rotate(std::span<T> x, const Axes& axes, std::span<const float> vectors, bool back);

}  // namespace fedsz::library

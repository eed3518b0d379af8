// What an encoder reads: an array, or what it is with a residual and above another, of which no
// more than a block is made at a time.
#pragma once

#include <cstddef>

#include "fetch.hpp"
#include "kernels.hpp"

namespace fedsz::uniform {

template <class E>
class Elements {
public:
    using T = typename E::Stored;

    Elements(const Operands<E>& operands, const Kernels& kernels)
        : operands_(operands), kernels_(kernels.of<E>()) {}

    // What elements at, at + 1, ... are made of. Fetches what is behind n <= kBlock of them, which
    // is read next.
    Operands<E> operands(std::size_t at, std::size_t n) const {
        fetch(operands_.x + at + n, n);
        if (operands_.base) fetch(operands_.base + at + n, n);
        if (operands_.residual) fetch(operands_.residual + at + n, n);
        return operands_.from(at);
    }

    // These elements; what is no array is put into `block`.
    const T* read(std::size_t at, std::size_t n, T* block) const {
        const Operands<E> here = operands(at, n);
        if (here.plain()) return here.x;
        kernels_.combine(here, n, block);
        return block;
    }

    T operator[](std::size_t i) const {
        T value;
        kernels_.combine(operands_.from(i), 1, &value);
        return value;
    }

    // Puts what is left out at left[at], left[at + 1], ... where elements are decoded to `decoded`;
    // returns the sum of its squares.
    double leave(std::size_t at, std::size_t n, const T* decoded, T* left) const {
        kernels_.left_out(operands_.from(at), decoded, n, left + at);
        return kernels_.energy(left + at, nullptr, n);
    }

private:
    Operands<E> operands_;
    const ElementKernels<E>& kernels_;
};

}  // namespace fedsz::uniform

// What an encoder reads: an array, or its difference from another, of which no more than a block is
// made at a time.
#pragma once

#include <cstddef>

#include "fetch.hpp"
#include "kernels.hpp"

namespace fedsz::uniform {

template <class E>
class Elements {
public:
    using T = typename E::Stored;

    // base: what is to be taken from x, or null.
    Elements(const T* x, const T* base, const Kernels& kernels)
        : x_(x), base_(base), kernels_(kernels.of<E>()) {}

    // Elements at, at + 1, ..., n <= kBlock of them; differences are put into `block`. Fetches
    // those behind them, which are read next.
    const T* read(std::size_t at, std::size_t n, T* block) const {
        fetch(x_ + at + n, n);
        if (!base_) return x_ + at;
        fetch(base_ + at + n, n);
        kernels_.subtract(x_ + at, base_ + at, n, block);
        return block;
    }

    T operator[](std::size_t i) const {
        if (!base_) return x_[i];
        T difference;
        kernels_.subtract(x_ + i, base_ + i, 1, &difference);
        return difference;
    }

private:
    const T* x_;
    const T* base_;
    const ElementKernels<E>& kernels_;
};

}  // namespace fedsz::uniform

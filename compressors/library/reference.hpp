// A model that both sides hold.
#pragma once

#include <cstddef>

#include "format.hpp"
#include "names.hpp"

namespace fedsz::library {

class Reference {
public:
    // Reads all elements once.
    Reference(const fedsz_tensor* tensors, const void* const* data, std::size_t count);

    const Digest& digest() const { return digest_; }

    // The elements of the tensor of that name, dtype and shape; null if it has none.
    const void* find(std::string_view name, unsigned dtype, Shape shape) const;

private:
    struct Entry {
        std::size_t name, name_length, shape, dimensions;  // in the pools
        unsigned dtype;
        const void* elements;
    };
    std::string_view name_of(std::size_t i) const {
        return {&names_[0] + entries_[i].name, entries_[i].name_length};
    }

    Vector<Entry> entries_;
    Vector<char> names_;
    Vector<std::uint64_t> shapes_;
    NameIndex index_;
    Digest digest_{};
};

}  // namespace fedsz::library

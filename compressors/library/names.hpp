// Finding things by their name.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "memory.hpp"

namespace fedsz::library {

// The order of things by name. name_of(i): that of number i.
class NameIndex {
public:
    // Of `count` things at once. False if two have the same name.
    template <class NameOf>
    bool build(std::size_t count, const NameOf& name_of) {
        order_.resize(count);
        for (std::size_t i = 0; i < count; ++i) order_[i] = std::uint32_t(i);
        std::ranges::sort(order_, {}, name_of);
        return std::ranges::adjacent_find(order_, {}, name_of) == order_.end();
    }

    void reserve(std::size_t count) { order_.reserve(count); }

    // Takes no more memory than has been reserved.
    template <class NameOf>
    void add(std::uint32_t i, const NameOf& name_of) {
        order_.insert(std::ranges::lower_bound(order_, name_of(i), {}, name_of), i);
    }

    static constexpr std::size_t npos = std::size_t(-1);

    template <class NameOf>
    std::size_t find(std::string_view name, const NameOf& name_of) const {
        const auto found = std::ranges::lower_bound(order_, name, {}, name_of);
        return found != order_.end() && name_of(*found) == name ? *found : npos;
    }

    std::size_t size() const { return order_.size(); }

private:
    Vector<std::uint32_t> order_;
};

}  // namespace fedsz::library

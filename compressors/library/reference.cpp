#include "reference.hpp"

#include <charconv>

#include "failure.hpp"

namespace fedsz::library {
namespace {

using stream::Xxh3;

void add_head(Xxh3& hash, const Described& tensor) {
    constexpr char zero = 0;
    hash.add(tensor.name.data(), tensor.name.size());
    hash.add(&zero, 1);
    hash.add(tensor.type().name.data(), tensor.type().name.size());
    hash.add(&zero, 1);
    const char* comma = "";
    for (const std::uint64_t length : tensor.shape) {
        char digits[20];
        hash.add(comma, *comma ? 1 : 0);
        hash.add(digits, std::size_t(std::to_chars(digits, digits + 20, length).ptr - digits));
        comma = ",";
    }
    hash.add(&zero, 1);
}

}  // namespace

Reference::Reference(const fedsz_tensor* tensors, const void* const* data, std::size_t count) {
    Xxh3 hash;
    names_.push_back(0);  // so that there is a first one
    for (std::size_t i = 0; i < count; ++i) {
        const Described tensor = described(tensors[i]);
        check_elements(data[i], tensor, "a reference's data");
        entries_.push_back({names_.size(), tensor.name.size(), shapes_.size(), tensor.shape.size(),
                            tensor.dtype, data[i]});
        names_.insert(names_.end(), tensor.name.begin(), tensor.name.end());
        shapes_.insert(shapes_.end(), tensor.shape.begin(), tensor.shape.end());
        add_head(hash, tensor);
        hash.add(data[i], tensor.size());
    }
    digest_ = hash.digest();
    if (!index_.build(count, [this](std::size_t i) { return name_of(i); }))
        fail(FEDSZ_ERROR_ARGUMENT, "two tensors of a reference have the same name");
}

const void* Reference::find(std::string_view name, unsigned dtype, Shape shape) const {
    const std::size_t i = index_.find(name, [this](std::size_t j) { return name_of(j); });
    if (i == NameIndex::npos) return nullptr;
    const Entry& entry = entries_[i];
    const Shape own(shapes_.data() + entry.shape, entry.dimensions);
    static constexpr char nothing[16] = {};
    if (entry.dtype != dtype || !std::ranges::equal(own, shape)) return nullptr;
    return entry.elements ? entry.elements : nothing;  // of no elements, there may be no address
}

}  // namespace fedsz::library

// RecycledBytes without a pool: nothing is kept between calls.
#include "recycled.hpp"

#include "memory.hpp"

namespace fedsz::uniform {

RecycledBytes::RecycledBytes(std::size_t n)
    : bytes_(Allocator<std::uint8_t>().allocate(n)), size_(n) {}

RecycledBytes::~RecycledBytes() {
    if (bytes_) Allocator<std::uint8_t>().deallocate(bytes_.release(), size_);
}

}  // namespace fedsz::uniform

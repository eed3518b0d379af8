// Memory that a caller gives, and buffers that lie there or on the heap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "memory.hpp"

namespace fedsz::library {

// A workspace as a heap of its own: the first gap that fits, and gaps that touch become one. What
// is kept should be asked for before what is not: then gaps stay behind it. Copies are of one heap.
class Arena final : public Memory {
public:
    // Takes `size` bytes at `start`, of any alignment; those it cannot use are none of its gaps.
    Arena(void* start, std::size_t size);

    void* allocate(std::size_t bytes) override;
    void release(void* block) noexcept override;

    // Gives back what is behind the first `bytes` of a block.
    void shrink(void* block, std::size_t bytes) noexcept;

private:
    struct Block;
    void join_gaps() noexcept;

    Block *first_ = nullptr, *end_ = nullptr;
};

// Bytes of any content, in the arena of this call or on the heap.
class Buffer {
public:
    Buffer() = default;
    explicit Buffer(std::size_t size);
    ~Buffer();
    Buffer(Buffer&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
    Buffer& operator=(Buffer&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        return *this;
    }

    std::uint8_t* data() const { return data_; }
    std::size_t size() const { return size_; }
    std::span<std::uint8_t> span() const { return {data_, size_}; }

    void shrink(std::size_t size) noexcept;

private:
    std::uint8_t* data_ = nullptr;
    std::size_t size_ = 0;
};

}  // namespace fedsz::library

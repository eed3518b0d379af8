// Memory that is used again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace fedsz::uniform {

// Bytes of any content. Once given back they wait for whoever next asks for as many, up to kMostSpare
// of them: an operating system takes as long to bring new pages as tokens take to be decoded into
// them, and a server opens reply after reply of the same sizes. recycled.cpp says so; the C library,
// which keeps nothing, has another definition.
class RecycledBytes {
public:
    RecycledBytes() = default;
    explicit RecycledBytes(std::size_t n);
    ~RecycledBytes();
    RecycledBytes(RecycledBytes&&) noexcept = default;
    RecycledBytes& operator=(RecycledBytes&& other) noexcept {
        bytes_.swap(other.bytes_);
        std::swap(size_, other.size_);
        return *this;
    }

    std::uint8_t* get() const { return bytes_.get(); }
    explicit operator bool() const { return bool(bytes_); }

private:
    std::unique_ptr<std::uint8_t[]> bytes_;
    std::size_t size_ = 0;
};

inline constexpr std::size_t kMostSpare = std::size_t(32) << 20;

}  // namespace fedsz::uniform

// Reading and writing bytes. A reader never reads past its end; what is not there is a
// `CorruptPayload`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "corrupt.hpp"

namespace fedsz::uniform {

using Bytes = std::span<const std::uint8_t>;

inline Bytes as_octets(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()};
}

class Reader {
public:
    explicit Reader(Bytes bytes) : bytes_(bytes) {}

    std::size_t left() const { return bytes_.size(); }

    Bytes take(std::uint64_t n) {
        if (n > bytes_.size()) throw CorruptPayload("payload ends before its fields do");
        const Bytes taken = bytes_.first(std::size_t(n));
        bytes_ = bytes_.subspan(std::size_t(n));
        return taken;
    }

    template <class T>
    T get() {
        T value;
        std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
        return value;
    }

    // LEB128: seven bits a byte, lowest first; the top bit says that more follow.
    std::uint64_t varint() {
        std::uint64_t value = 0;
        for (unsigned shift = 0; shift < 64; shift += 7) {
            const auto byte = get<std::uint8_t>();
            if (shift == 63 && byte > 1) break;
            value |= std::uint64_t(byte & 0x7F) << shift;
            if (byte < 0x80) return value;
        }
        throw CorruptPayload("a number has more than 64 bits");
    }

private:
    Bytes bytes_;
};

// Writes into a buffer of fixed size, and remembers if it was too small.
class Writer {
public:
    explicit Writer(std::span<std::uint8_t> buffer) : buffer_(buffer) {}

    std::size_t size() const { return size_; }
    bool full() const { return full_; }

    // The next n bytes, for the caller to fill; empty when there are not so many.
    std::span<std::uint8_t> reserve(std::size_t n) {
        if (full_ || n > buffer_.size() - size_) {
            full_ = true;
            return {};
        }
        size_ += n;
        return buffer_.subspan(size_ - n, n);
    }

    void put(const void* data, std::size_t n) {
        const auto room = reserve(n);
        if (!room.empty()) std::memcpy(room.data(), data, n);
    }

    template <class T>
    void put(T value) {
        put(&value, sizeof value);
    }

    void varint(std::uint64_t value) {
        for (; value >= 0x80; value >>= 7) put(std::uint8_t(value | 0x80));
        put(std::uint8_t(value));
    }

private:
    std::span<std::uint8_t> buffer_;
    std::size_t size_ = 0;
    bool full_ = false;
};

inline std::uint64_t zigzag(std::int64_t v) {
    return (std::uint64_t(v) << 1) ^ std::uint64_t(v >> 63);
}
inline std::int64_t unzigzag(std::uint64_t v) {
    return std::int64_t(v >> 1) ^ -std::int64_t(v & 1);
}

}  // namespace fedsz::uniform

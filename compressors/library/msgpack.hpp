// MessagePack, as far as headers have it.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "format.hpp"
#include "memory.hpp"

namespace fedsz::library {

// Writes each value in its shortest form.
class Packer {
public:
    void array(std::size_t n) { head(n, 0x90, 15, 0, 0xDC); }
    void map(std::size_t n) { head(n, 0x80, 15, 0, 0xDE); }
    void text(std::string_view s) {
        head(s.size(), 0xA0, 31, 0xD9, 0xDA);
        bytes_.insert(bytes_.end(), s.begin(), s.end());
    }
    void binary(Octets b) {
        head(b.size(), 0, -1, 0xC4, 0xC5);
        bytes_.insert(bytes_.end(), b.begin(), b.end());
    }
    void number(std::uint64_t n) {
        if (n < 0x80)
            put(n, 1);
        else if (n < 0x100)
            put(0xCC, 1), put(n, 1);
        else if (n < 0x10000)
            put(0xCD, 1), put(n, 2);
        else if (n < 0x100000000)
            put(0xCE, 1), put(n, 4);
        else
            put(0xCF, 1), put(n, 8);
    }
    void real(double x) { put(0xCB, 1), put(std::bit_cast<std::uint64_t>(x), 8); }
    void nil() { put(0xC0, 1); }
    void append(const Packer& other) {
        bytes_.insert(bytes_.end(), other.bytes_.begin(), other.bytes_.end());
    }

    Octets bytes() const { return bytes_; }

    // So that what follows, up to `more` bytes, takes no more memory.
    void reserve(std::size_t more) {
        if (bytes_.capacity() - bytes_.size() < more)
            bytes_.reserve(std::max(2 * bytes_.size(), bytes_.size() + more));
    }

private:
    void put(std::uint64_t value, int bytes) {
        for (int i = bytes - 1; i >= 0; --i) bytes_.push_back(std::uint8_t(value >> 8 * i));
    }
    // one: the form with a length of one byte, if there is one; two: of two bytes; then of four.
    void head(std::size_t n, unsigned fixed, int most, unsigned one, unsigned two) {
        if (most >= 0 && n <= std::size_t(most))
            put(fixed | n, 1);
        else if (one && n < 0x100)
            put(one, 1), put(n, 1);
        else if (n < 0x10000)
            put(two, 1), put(n, 2);
        else
            put(two + 1, 1), put(n, 4);
    }

    Vector<std::uint8_t> bytes_;
};

// Reads values of the types that a header says they have; anything else is a Failure.
class Unpacker {
public:
    explicit Unpacker(Octets bytes) : bytes_(bytes) {}

    std::uint64_t array();
    std::uint64_t map();
    Octets text();  // UTF-8
    Octets binary();
    std::int64_t integer();  // one beyond the range becomes its end
    double real();           // of an integer, too
    bool nil();              // whether there is one; if so, it is taken
    Octets any();            // a value of whatever type
    void end() const;

private:
    std::uint8_t byte();
    std::uint64_t take(unsigned bytes);
    Octets piece(std::uint64_t n);
    std::uint64_t length(unsigned first, unsigned fixed, unsigned mask, unsigned one, unsigned two,
                         const char* what);

    Octets bytes_;
};

}  // namespace fedsz::library

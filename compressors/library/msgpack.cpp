#include "msgpack.hpp"

#include "failure.hpp"

namespace fedsz::library {
namespace {

constexpr unsigned kDeepest = 512;

[[noreturn]] void refuse(const char* what) {
    fail_at(kPrefix, FEDSZ_ERROR_CORRUPT, "not a header: ", what);
}

}  // namespace

std::uint8_t Unpacker::byte() { return piece(1)[0]; }

Octets Unpacker::piece(std::uint64_t n) {
    if (n > bytes_.size()) refuse("it ends too early");
    const Octets taken = bytes_.first(std::size_t(n));
    bytes_ = bytes_.subspan(std::size_t(n));
    return taken;
}

std::uint64_t Unpacker::take(unsigned bytes) {
    std::uint64_t value = 0;
    for (const std::uint8_t byte : piece(bytes)) value = value << 8 | byte;
    return value;
}

std::uint64_t Unpacker::length(unsigned first, unsigned fixed, unsigned mask, unsigned one,
                               unsigned two, const char* what) {
    if (mask && (first & ~mask) == fixed) return first & mask;
    if (one && first == one) return take(1);
    if (first == two) return take(2);
    if (first == two + 1) return take(4);
    refuse(what);
}

std::uint64_t Unpacker::array() { return length(byte(), 0x90, 15, 0, 0xDC, "expected an array"); }
std::uint64_t Unpacker::map() { return length(byte(), 0x80, 15, 0, 0xDE, "expected a map"); }

Octets Unpacker::text() {
    const Octets text = piece(length(byte(), 0xA0, 31, 0xD9, 0xDA, "expected text"));
    if (!is_utf8(text)) refuse("text is not UTF-8");
    return text;
}

Octets Unpacker::binary() { return piece(length(byte(), 0, 0, 0xC4, 0xC5, "expected bytes")); }

std::int64_t Unpacker::integer() {
    const unsigned first = byte();
    if (first < 0x80) return first;
    if (first >= 0xE0) return std::int64_t(first) - 256;
    if (first >= 0xCC && first <= 0xCF) {
        const std::uint64_t value = take(1u << (first - 0xCC));
        constexpr std::uint64_t most = std::numeric_limits<std::int64_t>::max();
        return std::int64_t(std::min(value, most));
    }
    if (first < 0xD0 || first > 0xD3) refuse("expected an integer");
    const unsigned bytes = 1u << (first - 0xD0), unused = 64 - 8 * bytes;
    return std::int64_t(take(bytes) << unused) >> unused;
}

double Unpacker::real() {
    const unsigned first = bytes_.empty() ? 0 : bytes_[0];
    if (first == 0xCA) {
        byte();
        return std::bit_cast<float>(std::uint32_t(take(4)));
    }
    if (first == 0xCB) {
        byte();
        return std::bit_cast<double>(take(8));
    }
    if (first == 0xCF) {
        byte();
        return double(take(8));
    }
    return double(integer());
}

bool Unpacker::nil() {
    const bool found = !bytes_.empty() && bytes_[0] == 0xC0;
    if (found) byte();
    return found;
}

Octets Unpacker::any() {
    const Octets from = bytes_;
    std::uint64_t left[kDeepest];  // values still to come, at each depth
    unsigned depth = 0;
    left[0] = 1;
    for (;;) {
        while (left[depth] == 0) {
            if (depth-- == 0) return from.first(from.size() - bytes_.size());
        }
        --left[depth];
        const unsigned first = byte();
        std::uint64_t nested = 0;
        if ((first & 0xF0) == 0x80 || first == 0xDE || first == 0xDF)
            nested = 2 * length(first, 0x80, 15, 0, 0xDE, "");
        else if ((first & 0xF0) == 0x90 || first == 0xDC || first == 0xDD)
            nested = length(first, 0x90, 15, 0, 0xDC, "");
        else if ((first & 0xE0) == 0xA0 || (first >= 0xD9 && first <= 0xDB))
            piece(length(first, 0xA0, 31, 0xD9, 0xDA, ""));
        else if (first >= 0xC4 && first <= 0xC6)
            piece(length(first, 0, 0, 0xC4, 0xC5, ""));
        else if (first >= 0xC7 && first <= 0xC9)
            piece(sum(take(1u << (first - 0xC7)), 1));
        else if (first == 0xCA || first == 0xCB)
            piece(4u << (first - 0xCA));
        else if (first >= 0xCC && first <= 0xD3)
            piece(1u << (first & 3));
        else if (first >= 0xD4 && first <= 0xD8)
            piece(1 + (1u << (first - 0xD4)));
        else if (first == 0xC1)
            refuse("a byte that begins nothing");
        if (nested > 0) {
            if (++depth == kDeepest) refuse("it is nested too deeply");
            left[depth] = nested;
        }
    }
}

void Unpacker::end() const {
    if (!bytes_.empty()) refuse("bytes behind the end");
}

}  // namespace fedsz::library

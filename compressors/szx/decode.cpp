#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string>

#include "corrupt.hpp"
#include "fields.hpp"
#include "szx.hpp"

namespace fedsz::szx {
namespace {

// Takes fields off the front of a payload, each only if it is there.
class Reader {
public:
    explicit Reader(std::span<const std::byte> left) : left_(left) {}

    std::span<const std::byte> take(std::size_t size, const char* what) {
        if (size > left_.size()) {
            throw CorruptPayload(std::string(what) + " needs " + std::to_string(size) +
                                 " bytes, has " + std::to_string(left_.size()));
        }
        const auto taken = left_.first(size);
        left_ = left_.subspan(size);
        return taken;
    }
    float take_middle() {
        float middle;
        std::memcpy(&middle, take(sizeof middle, "the middle of a block").data(), sizeof middle);
        return middle;
    }
    std::size_t left() const { return left_.size(); }

private:
    std::span<const std::byte> left_;
};

// The codes of `count` elements, four to a byte, and how many bytes they leave to be read.
std::size_t bytes_left(std::span<const std::byte> codes, std::size_t count, std::size_t width) {
    unsigned omitted = 0;
    unsigned threes = 0;
    for (const std::byte four : codes) {
        const auto c = std::to_integer<unsigned>(four);
        omitted += (c & 3U) + (c >> 2 & 3U) + (c >> 4 & 3U) + (c >> 6);
        threes |= c & c >> 1 & 0x55U;
    }
    if (width < 3 && threes != 0) {
        throw CorruptPayload("an element omits 3 bytes of 2");
    }
    const std::size_t unused = 2 * (4 * codes.size() - count);
    if (std::to_integer<unsigned>(codes.back()) >> (8 - unused) != 0) {
        throw CorruptPayload("a block has codes beyond its last element");
    }
    return count * width - omitted;
}

// How far `read_words` may look beyond the bytes that the codes ask for.
constexpr std::size_t lookahead = 16;

// Undoes the omission of leading bytes, of elements of Width bytes, four for each byte of `codes`.
template <unsigned Width>
void read_words(std::span<const std::byte> codes, const std::byte* bytes, Words& words) {
    constexpr std::uint32_t all = ~std::uint32_t{0} >> (32 - 8 * Width);
    std::uint32_t word = 0;
    for (std::size_t i = 0; i < codes.size(); ++i) {
        const auto four = std::to_integer<unsigned>(codes[i]);
        for (unsigned j = 0; j < 4; ++j) {
            const unsigned code = four >> (2 * j) & 3U;
            const std::uint32_t mask = all >> (8 * code);
            std::uint32_t fresh;
            std::memcpy(&fresh, bytes, 4);
            word = (word & ~mask) | (fresh & mask);
            words[4 * i + j] = word;
            bytes += Width - code;
        }
    }
}

void decode_words(Reader& payload, unsigned bits, std::size_t count, Words& words) {
    const std::size_t width = bytes_for(bits);
    // A copy: what is checked must be what is used, even if another thread writes to the payload.
    std::array<std::byte, codes_length> copy;
    const auto taken = payload.take((count + 3) / 4, "the codes of a block");
    std::ranges::copy(taken, copy.begin());
    const auto codes = std::span(copy).first(taken.size());
    const std::size_t size = bytes_left(codes, count, width);
    const bool roomy = payload.left() >= size + lookahead;
    const auto bytes = payload.take(size, "a block");

    std::array<std::byte, 4 * block_length + lookahead> padded;
    const std::byte* from = bytes.data();
    if (!roomy) {
        std::fill(std::ranges::copy(bytes, padded.begin()).out, padded.end(), std::byte{0});
        from = padded.data();
    }
    switch (width) {
        case 2: read_words<2>(codes, from, words); break;
        case 3: read_words<3>(codes, from, words); break;
        default: read_words<4>(codes, from, words); break;
    }
}

void decode_block(Reader& payload, std::span<float> x) {
    const auto bits = std::to_integer<unsigned>(payload.take(1, "the bits of a block")[0]);
    if (bits < sign_and_exponent || bits > exact_bits) {
        throw CorruptPayload("a block of " + std::to_string(bits) + " bits");
    }
    Words words;
    if (bits == exact_bits) {
        decode_words(payload, bits, x.size(), words);
        std::memcpy(x.data(), words.data(), x.size_bytes());
        return;
    }
    const float middle = payload.take_middle();
    decode_words(payload, bits, x.size(), words);
    std::uint32_t all = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
        all |= words[i];
        x[i] = middle + std::bit_cast<float>(words[i] << (32 - bits));
    }
    if (all >> bits != 0) {
        throw CorruptPayload("an element of more than " + std::to_string(bits) + " bits");
    }
}

bool bit_of(std::span<const std::byte> bitmap, std::size_t index) {
    return (std::to_integer<unsigned>(bitmap[index / 8]) >> (index % 8) & 1U) != 0;
}

// The mode of a payload that may have `n` elements. To be used as it is returned: another thread may
// write to the payload, and what has been checked for one mode is not for the other.
std::byte checked_mode(std::span<const std::byte> payload, std::size_t n) {
    if (payload.empty()) {
        throw CorruptPayload("no mode: the payload is empty");
    }
    const std::byte mode = payload[0];
    const std::size_t blocks = blocks_of(n);
    if (mode == stored) {
        if ((payload.size() - 1) / 4 != n || (payload.size() - 1) % 4 != 0) {
            throw CorruptPayload("a stored payload of " + std::to_string(payload.size()) +
                                 " bytes for " + std::to_string(n) + " elements");
        }
    } else if (mode != coded) {
        throw CorruptPayload("mode " + std::to_string(std::to_integer<unsigned>(mode)));
    } else if (payload.size() - 1 < bitmap_length(blocks) + sizeof(float) * blocks) {
        throw CorruptPayload("a payload of " + std::to_string(payload.size()) + " bytes for " +
                             std::to_string(n) + " elements");
    }
    return mode;
}

}  // namespace

void check_size(std::span<const std::byte> payload, std::size_t n) { checked_mode(payload, n); }

void decode(std::span<const std::byte> payload, std::span<float> x) {
    if (checked_mode(payload, x.size()) == stored) {
        std::ranges::copy(payload.subspan(1), std::as_writable_bytes(x).begin());
        return;
    }
    const std::size_t blocks = blocks_of(x.size());
    Reader reader(payload.subspan(1));
    const auto bitmap = reader.take(bitmap_length(blocks), "the bitmap");
    for (std::size_t i = 0; i < blocks; ++i) {
        const auto block = x.subspan(i * block_length,
                                     std::min(block_length, x.size() - i * block_length));
        if (bit_of(bitmap, i)) {
            decode_block(reader, block);
        } else {
            std::ranges::fill(block, reader.take_middle());
        }
    }
    for (std::size_t i = blocks; i < 8 * bitmap.size(); ++i) {
        if (bit_of(bitmap, i)) {
            throw CorruptPayload("the bitmap has bits beyond the last block");
        }
    }
    if (reader.left() != 0) {
        throw CorruptPayload(std::to_string(reader.left()) + " bytes after the last block");
    }
}

}  // namespace fedsz::szx

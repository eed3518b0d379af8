#include "ring.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include "corrupt.hpp"

namespace fedsz::ring {

namespace {

static_assert(std::endian::native == std::endian::little, "words are stored as they lie in memory");

// So many tokens take whole words, as many as a token has bits.
constexpr std::size_t kBlock = 32;

// Calls step(i) for i = 0, 1, ... kBlock - 1, each a constant: shifts are known to the compiler.
template <class Step>
[[gnu::always_inline]] inline void unrolled(const Step& step) {
    [&]<std::size_t... I>(std::index_sequence<I...>) {
        (step(std::integral_constant<std::size_t, I>{}), ...);
    }(std::make_index_sequence<kBlock>{});
}

constexpr std::uint32_t mask_of(unsigned bits) {
    return std::uint32_t((std::uint64_t(1) << bits) - 1);
}

// Packs a block; returns the bits that its tokens have set, all together.
template <unsigned kBits>
std::uint32_t pack_block(const std::uint32_t* tokens, std::byte* out) {
    std::uint32_t word = 0, seen = 0;
    unrolled([&](auto i) {
        constexpr std::size_t at = i * kBits, shift = at % 32;
        const std::uint32_t token = tokens[i];
        seen |= token;
        word |= token << shift;
        if constexpr (shift + kBits >= 32) {
            std::memcpy(out + at / 32 * sizeof word, &word, sizeof word);
            word = shift + kBits > 32 ? token >> (32 - shift) % 32 : 0;
        }
    });
    return seen;
}

// Unpacks a block; bits above a token's may be set.
template <unsigned kBits>
void unpack_block(const std::byte* packed, std::uint32_t* tokens) {
    std::uint32_t words[kBits];
    std::memcpy(words, packed, sizeof words);
    unrolled([&](auto i) {
        constexpr std::size_t at = i * kBits, word = at / 32, shift = at % 32;
        std::uint32_t token = words[word] >> shift;
        if constexpr (shift + kBits > 32) token |= words[word + 1] << (32 - shift);
        tokens[i] = token;
    });
}

// Both ways, for each number of bits: entry i is for i + 1.
struct Blocks {
    std::array<decltype(&pack_block<1>), kMostBits> pack;
    std::array<decltype(&unpack_block<1>), kMostBits> unpack;
};

constexpr Blocks kBlocks = []<std::size_t... I>(std::index_sequence<I...>) {
    return Blocks{{pack_block<I + 1>...}, {unpack_block<I + 1>...}};
}(std::make_index_sequence<kMostBits>{});

template <class T>
std::uint32_t pack_all(std::span<const T> tokens, unsigned bits, std::span<std::byte> out) {
    const auto pack = kBlocks.pack[bits - 1];
    const std::size_t size = kBlock / 8 * bits;
    std::uint32_t seen = 0, wide[kBlock];
    for (; tokens.size() >= kBlock; tokens = tokens.subspan(kBlock), out = out.subspan(size)) {
        std::copy_n(tokens.begin(), kBlock, wide);
        seen |= pack(wide, out.data());
    }
    std::ranges::fill(std::ranges::copy(tokens, wide).out, std::end(wide), 0u);
    std::byte packed[kBlock / 8 * kMostBits];
    seen |= pack(wide, packed);
    std::copy_n(packed, out.size(), out.begin());
    return seen;
}

template <class T>
void add_all(std::span<const std::byte> packed, unsigned bits, std::span<T> sums) {
    const auto unpack = kBlocks.unpack[bits - 1];
    const std::size_t size = kBlock / 8 * bits;
    const std::uint32_t mask = mask_of(bits);
    std::uint32_t wide[kBlock];
    const auto add = [&](std::span<T> some) {
        for (std::size_t i = 0; i < some.size(); ++i) some[i] = T((some[i] + wide[i]) & mask);
    };
    for (; sums.size() >= kBlock; sums = sums.subspan(kBlock), packed = packed.subspan(size)) {
        unpack(packed.data(), wide);
        add(sums.first(kBlock));
    }
    std::byte last[kBlock / 8 * kMostBits] = {};
    std::ranges::copy(packed, last);
    unpack(last, wide);
    add(sums);
}

template <class T>
std::size_t size_of(std::span<T> tokens, unsigned bits) {
    if (bits > 8 * sizeof(T)) throw std::invalid_argument("tokens have more bits than their dtype");
    return packed_size(tokens.size(), bits);
}

}  // namespace

std::size_t packed_size(std::size_t count, unsigned bits) {
    if (bits < 1 || bits > kMostBits) throw std::invalid_argument("a token has 1 to 32 bits");
    if (count > (std::numeric_limits<std::size_t>::max() - 7) / bits)
        throw std::invalid_argument("tokens are more than any memory holds");
    return (count * bits + 7) / 8;
}

template <class T>
void pack(std::span<const T> tokens, unsigned bits, std::span<std::byte> out) {
    if (out.size() != size_of(tokens, bits))
        throw std::invalid_argument("packed tokens have another size");
    if (pack_all(tokens, bits, out) > mask_of(bits))
        throw std::invalid_argument("a token has more than " + std::to_string(bits) + " bits");
}

template <class T>
void unpack_add(std::span<const std::byte> packed, unsigned bits, std::span<T> sums) {
    const std::size_t size = size_of(sums, bits);
    if (packed.size() != size)
        throw CorruptPayload(std::to_string(sums.size()) + " tokens of " + std::to_string(bits) +
                             " bits take " + std::to_string(size) + " bytes, got " +
                             std::to_string(packed.size()));
    const std::size_t used = sums.size() * bits % 8;  // of the last byte; 0 where all are
    if (used > 0 && std::to_integer<unsigned>(packed.back()) >> used > 0)
        throw CorruptPayload("bits behind the last token");
    add_all(packed, bits, sums);
}

template void pack(std::span<const std::uint8_t>, unsigned, std::span<std::byte>);
template void pack(std::span<const std::uint16_t>, unsigned, std::span<std::byte>);
template void pack(std::span<const std::uint32_t>, unsigned, std::span<std::byte>);
template void unpack_add(std::span<const std::byte>, unsigned, std::span<std::uint8_t>);
template void unpack_add(std::span<const std::byte>, unsigned, std::span<std::uint16_t>);
template void unpack_add(std::span<const std::byte>, unsigned, std::span<std::uint32_t>);

}  // namespace fedsz::ring

// XXH3, 128 bits, without a seed: the digest of a model (docs/format.md).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace fedsz::library {

using Digest = std::array<std::uint8_t, 16>;  // canonical: most significant byte first

// Hashes pieces as if they were one.
class Xxh3 {
public:
    Xxh3();
    void add(const void* bytes, std::size_t n);
    Digest digest() const;

private:
    static constexpr std::size_t kStripe = 64, kBuffer = 256;

    void consume(const std::uint8_t* stripes, std::size_t count);

    std::array<std::uint64_t, 8> lanes_;
    std::array<std::uint8_t, kBuffer> buffer_;  // what has not been consumed, and at least one byte
    std::array<std::uint8_t, kStripe> before_{};  // the stripe before that
    std::size_t held_ = 0, stripes_ = 0;          // stripes: consumed of the block
    std::uint64_t length_ = 0;
};

}  // namespace fedsz::library

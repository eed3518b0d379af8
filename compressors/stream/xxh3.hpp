// XXH3 without a seed: the digest of a model, of 128 bits, and keys of 64 (docs/format.md).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "stripes.hpp"

namespace fedsz::stream {

using Digest = std::array<std::uint8_t, 16>;  // canonical: most significant byte first

// Hashes pieces as if they were one.
class Xxh3 {
public:
    explicit Xxh3(const Kernels& kernels = levels<Built>().best());
    void add(const void* bytes, std::size_t n);
    Digest digest() const;
    std::uint64_t digest64() const;

private:
    static constexpr std::size_t kBuffer = 256;
    using Lanes = std::array<std::uint64_t, 8>;

    void consume(const std::uint8_t* stripes, std::size_t count);
    Lanes ended() const;  // the lanes after all input, where that is long

    Consume kernel_;
    Lanes lanes_;
    std::array<std::uint8_t, kBuffer> buffer_;  // what has not been consumed, and at least one byte
    std::array<std::uint8_t, kStripe> before_{};  // the stripe before that
    std::size_t held_ = 0, stripes_ = 0;          // stripes: consumed of the block
    std::uint64_t length_ = 0;
};

}  // namespace fedsz::stream

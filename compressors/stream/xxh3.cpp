// After the specification of XXH3 (github.com/Cyan4973/xxHash, doc/xxhash_spec.md).
#include "xxh3.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace fedsz::stream {

const std::uint8_t kSecret[kSecretSize] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e};

namespace {

using U32 = std::uint32_t;
using U64 = std::uint64_t;

constexpr U64 kPrime32[] = {kSmallPrime, 0x85EBCA77, 0xC2B2AE3D};
constexpr U64 kPrime64[] = {0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9,
                            0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5};
constexpr U64 kMix[] = {0x165667919E3779F9, 0x9FB21C651E98DF25};

struct Wide {
    U64 low, high;
};

template <class T>
T read(const std::uint8_t* at) {
    T value;
    std::memcpy(&value, at, sizeof value);
    return value;
}
U64 secret(std::size_t at) { return read<U64>(kSecret + at); }

U32 swapped(U32 v) { return v >> 24 | (v >> 8 & 0xFF00) | (v << 8 & 0xFF0000) | v << 24; }
U64 swapped(U64 v) { return U64(swapped(U32(v))) << 32 | swapped(U32(v >> 32)); }

// By halves: not every machine has numbers of 128 bits.
Wide product(U64 a, U64 b) {
    const U64 low = (a & 0xFFFFFFFF) * (b & 0xFFFFFFFF), high = (a >> 32) * (b >> 32);
    const U64 first = (a >> 32) * (b & 0xFFFFFFFF), second = (a & 0xFFFFFFFF) * (b >> 32);
    const U64 cross = (low >> 32) + (first & 0xFFFFFFFF) + second;
    return {cross << 32 | (low & 0xFFFFFFFF), (first >> 32) + (cross >> 32) + high};
}
U64 folded(U64 a, U64 b) {
    const Wide wide = product(a, b);
    return wide.low ^ wide.high;
}

U64 avalanche(U64 h) {
    h = (h ^ h >> 37) * kMix[0];
    return h ^ h >> 32;
}
U64 avalanche64(U64 h) {
    h = (h ^ h >> 33) * kPrime64[1];
    h = (h ^ h >> 29) * kPrime64[2];
    return h ^ h >> 32;
}

Wide of_1_to_3(const std::uint8_t* in, std::size_t n) {
    const U32 low = U32(in[0]) << 16 | U32(in[n >> 1]) << 24 | U32(in[n - 1]) | U32(n) << 8;
    const U32 high = std::rotl(swapped(low), 13);
    return {avalanche64(low ^ (U64(read<U32>(kSecret)) ^ read<U32>(kSecret + 4))),
            avalanche64(high ^ (U64(read<U32>(kSecret + 8)) ^ read<U32>(kSecret + 12)))};
}

Wide of_4_to_8(const std::uint8_t* in, std::size_t n) {
    const U64 both = read<U32>(in) + (U64(read<U32>(in + n - 4)) << 32);
    Wide m = product(both ^ secret(16) ^ secret(24), kPrime64[0] + (U64(n) << 2));
    m.high += m.low << 1;
    m.low ^= m.high >> 3;
    m.low = (m.low ^ m.low >> 35) * kMix[1];
    return {m.low ^ m.low >> 28, avalanche(m.high)};
}

Wide of_9_to_16(const std::uint8_t* in, std::size_t n) {
    const U64 first = read<U64>(in), last = read<U64>(in + n - 8);
    Wide m = product(first ^ last ^ secret(32) ^ secret(40), kPrime64[0]);
    m.low += U64(n - 1) << 54;
    const U64 mixed = last ^ secret(48) ^ secret(56);
    m.high += mixed + U64(U32(mixed)) * (kPrime32[1] - 1);
    m.low ^= swapped(m.high);
    Wide h = product(m.low, kPrime64[1]);
    h.high += m.high * kPrime64[1];
    return {avalanche(h.low), avalanche(h.high)};
}

U64 mix16(const std::uint8_t* in, std::size_t at) {
    return folded(read<U64>(in) ^ secret(at), read<U64>(in + 8) ^ secret(at + 8));
}
void mix32(Wide& sum, const std::uint8_t* first, const std::uint8_t* second, std::size_t at) {
    sum.low = (sum.low + mix16(first, at)) ^ (read<U64>(second) + read<U64>(second + 8));
    sum.high = (sum.high + mix16(second, at + 16)) ^ (read<U64>(first) + read<U64>(first + 8));
}

Wide of_17_to_240(const std::uint8_t* in, std::size_t n) {
    Wide sum{n * kPrime64[0], 0};
    if (n <= 128) {
        for (std::size_t i = (n - 1) / 32 + 1; i-- > 0;)
            mix32(sum, in + 16 * i, in + n - 16 * (i + 1), 32 * i);
    } else {
        for (std::size_t i = 0; i < n / 32; ++i) {
            if (i == 4) sum = {avalanche(sum.low), avalanche(sum.high)};
            mix32(sum, in + 32 * i, in + 32 * i + 16, i < 4 ? 32 * i : 3 + 32 * (i - 4));
        }
        if (n / 32 == 4) sum = {avalanche(sum.low), avalanche(sum.high)};
        mix32(sum, in + n - 16, in + n - 32, 136 - 17 - 16);
    }
    return {avalanche(sum.low + sum.high),
            0 - avalanche(sum.low * kPrime64[0] + sum.high * kPrime64[3] + n * kPrime64[1])};
}

Wide of_short(const std::uint8_t* in, std::size_t n) {
    if (n > 16) return of_17_to_240(in, n);
    if (n > 8) return of_9_to_16(in, n);
    if (n >= 4) return of_4_to_8(in, n);
    if (n > 0) return of_1_to_3(in, n);
    return {avalanche64(secret(64) ^ secret(72)), avalanche64(secret(80) ^ secret(88))};
}

U64 of_1_to_3_in_64(const std::uint8_t* in, std::size_t n) {
    const U32 all = U32(in[0]) << 16 | U32(in[n >> 1]) << 24 | U32(in[n - 1]) | U32(n) << 8;
    return avalanche64(all ^ (U64(read<U32>(kSecret)) ^ read<U32>(kSecret + 4)));
}

U64 of_4_to_8_in_64(const std::uint8_t* in, std::size_t n) {
    const U64 both = read<U32>(in + n - 4) + (U64(read<U32>(in)) << 32);
    U64 h = both ^ secret(8) ^ secret(16);
    h = (h ^ std::rotl(h, 49) ^ std::rotl(h, 24)) * kMix[1];
    h = (h ^ ((h >> 35) + n)) * kMix[1];
    return h ^ h >> 28;
}

U64 of_9_to_16_in_64(const std::uint8_t* in, std::size_t n) {
    const U64 first = read<U64>(in) ^ secret(24) ^ secret(32);
    const U64 last = read<U64>(in + n - 8) ^ secret(40) ^ secret(48);
    return avalanche(n + swapped(first) + last + folded(first, last));
}

U64 of_17_to_240_in_64(const std::uint8_t* in, std::size_t n) {
    U64 sum = n * kPrime64[0];
    if (n <= 128) {
        for (std::size_t i = 0; i <= (n - 1) / 32; ++i)
            sum += mix16(in + 16 * i, 32 * i) + mix16(in + n - 16 * (i + 1), 32 * i + 16);
        return avalanche(sum);
    }
    for (std::size_t i = 0; i < 8; ++i) sum += mix16(in + 16 * i, 16 * i);
    sum = avalanche(sum);
    for (std::size_t i = 8; i < n / 16; ++i) sum += mix16(in + 16 * i, 3 + 16 * (i - 8));
    return avalanche(sum + mix16(in + n - 16, 136 - 17));
}

U64 of_short_in_64(const std::uint8_t* in, std::size_t n) {
    if (n > 16) return of_17_to_240_in_64(in, n);
    if (n > 8) return of_9_to_16_in_64(in, n);
    if (n >= 4) return of_4_to_8_in_64(in, n);
    if (n > 0) return of_1_to_3_in_64(in, n);
    return avalanche64(secret(56) ^ secret(64));
}

// The last stripe, which has a place of its own in the secret.
void accumulate(std::array<U64, 8>& lanes, const std::uint8_t* stripe, std::size_t at) {
    for (std::size_t i = 0; i < 8; ++i) {
        const U64 value = read<U64>(stripe + 8 * i), keyed = value ^ secret(at + 8 * i);
        lanes[i ^ 1] += value;
        lanes[i] += U64(U32(keyed)) * (keyed >> 32);
    }
}

U64 merged(const std::array<U64, 8>& lanes, std::size_t at, U64 start) {
    for (std::size_t i = 0; i < 4; ++i)
        start +=
            folded(lanes[2 * i] ^ secret(at + 16 * i), lanes[2 * i + 1] ^ secret(at + 16 * i + 8));
    return avalanche(start);
}

}  // namespace

Xxh3::Xxh3(const Kernels& kernels)
    : kernel_(kernels.consume),
      lanes_{kPrime32[2], kPrime64[0], kPrime64[1], kPrime64[2],
             kPrime64[3], kPrime32[1], kPrime64[4], kPrime32[0]} {}

void Xxh3::consume(const std::uint8_t* stripes, std::size_t count) {
    stripes_ = kernel_(lanes_.data(), stripes, count, stripes_);
}

void Xxh3::add(const void* bytes, std::size_t n) {
    const auto* in = static_cast<const std::uint8_t*>(bytes);
    length_ += n;
    while (n > 0) {
        if (held_ == kBuffer) {
            // More follows, so that none of these stripes is the last.
            consume(buffer_.data(), kBuffer / kStripe);
            std::copy_n(&buffer_[kBuffer - kStripe], kStripe, before_.begin());
            held_ = 0;
            if (n > kBuffer) {
                const std::size_t stripes = (n - 1) / kStripe;
                consume(in, stripes);
                in += stripes * kStripe;
                n -= stripes * kStripe;
                std::copy_n(in - kStripe, kStripe, before_.begin());
            }
        }
        const std::size_t some = std::min(n, kBuffer - held_);
        std::copy_n(in, some, &buffer_[held_]);
        held_ += some;
        in += some;
        n -= some;
    }
}

Xxh3::Lanes Xxh3::ended() const {
    Xxh3 last = *this;
    last.consume(buffer_.data(), (held_ - 1) / kStripe);
    std::array<std::uint8_t, kStripe> stripe;
    const std::size_t old = held_ < kStripe ? kStripe - held_ : 0;
    std::copy_n(before_.data() + kStripe - old, old, stripe.begin());
    std::copy_n(&buffer_[held_ - (kStripe - old)], kStripe - old, &stripe[old]);
    accumulate(last.lanes_, stripe.data(), kSecretSize - 64 - 7);
    return last.lanes_;
}

Digest Xxh3::digest() const {
    Wide h;
    if (length_ <= 240) {
        h = of_short(buffer_.data(), std::size_t(length_));
    } else {
        const Lanes lanes = ended();
        h = {merged(lanes, 11, length_ * kPrime64[0]),
             merged(lanes, kSecretSize - 64 - 11, ~(length_ * kPrime64[1]))};
    }
    Digest digest;
    for (std::size_t i = 0; i < 8; ++i) {
        digest[i] = std::uint8_t(h.high >> (56 - 8 * i));
        digest[8 + i] = std::uint8_t(h.low >> (56 - 8 * i));
    }
    return digest;
}

U64 Xxh3::digest64() const {
    if (length_ <= 240) return of_short_in_64(buffer_.data(), std::size_t(length_));
    return merged(ended(), 11, length_ * kPrime64[0]);
}

}  // namespace fedsz::stream

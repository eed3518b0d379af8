// Compiled once for each instruction set, which FEDSZ_VARIANT names; see CMakeLists.txt.

#include "stripes.hpp"

#include <cstring>

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace fedsz::stream {
namespace {

using U64 = std::uint64_t;

#ifdef __x86_64__

#if defined(__AVX512F__)
constexpr std::size_t kBytes = 64;
#elif defined(__AVX2__)
constexpr std::size_t kBytes = 32;
#else
constexpr std::size_t kBytes = 16;
#endif
constexpr std::size_t kVectors = kStripe / kBytes, kAhead = 512;  // bytes

typedef U64 Vector __attribute__((vector_size(kBytes)));

// Products of the lower halves.
[[gnu::always_inline]] inline Vector product(Vector a, Vector b) {
#if defined(__AVX512F__)
    return Vector(_mm512_mul_epu32(__m512i(a), __m512i(b)));
#elif defined(__AVX2__)
    return Vector(_mm256_mul_epu32(__m256i(a), __m256i(b)));
#else
    return Vector(_mm_mul_epu32(__m128i(a), __m128i(b)));
#endif
}

// Neighbours in each other's place.
[[gnu::always_inline]] inline Vector swapped(Vector a) {
#if defined(__AVX512F__)
    return Vector(_mm512_shuffle_epi32(__m512i(a), _MM_PERM_BADC));
#elif defined(__AVX2__)
    return Vector(_mm256_shuffle_epi32(__m256i(a), 0x4E));
#else
    return Vector(_mm_shuffle_epi32(__m128i(a), 0x4E));
#endif
}

[[gnu::always_inline]] inline Vector load(const void* at) {
    Vector vector;
    std::memcpy(&vector, at, kBytes);
    return vector;
}

[[gnu::always_inline]] inline void add(Vector* sums, const std::uint8_t* stripes, std::size_t at,
                                       std::size_t count) {
#pragma GCC unroll 4
    for (std::size_t i = 0; i < count; ++i) {
        __builtin_prefetch(stripes + kStripe * i + kAhead);
        for (std::size_t j = 0; j < kVectors; ++j) {
            const Vector value = load(stripes + kStripe * i + kBytes * j);
            const Vector keyed = value ^ load(kSecret + 8 * (at + i) + kBytes * j);
            sums[j] += product(keyed, keyed >> 32) + swapped(value);
        }
    }
}

std::size_t consume(U64* lanes, const std::uint8_t* stripes, std::size_t count, std::size_t at) {
    Vector sums[kVectors];
    std::memcpy(sums, lanes, sizeof sums);
    while (at + count >= kPerBlock) {
        const std::size_t some = kPerBlock - at;
        add(sums, stripes, at, some);
        stripes += kStripe * some;
        count -= some;
        at = 0;
        const Vector prime = kSmallPrime - Vector{};
        for (std::size_t j = 0; j < kVectors; ++j) {
            const Vector mixed =
                sums[j] ^ sums[j] >> 47 ^ load(kSecret + kSecretSize - kStripe + kBytes * j);
            sums[j] = product(mixed, prime) + (product(mixed >> 32, prime) << 32);
        }
    }
    add(sums, stripes, at, count);
    std::memcpy(lanes, sums, sizeof sums);
    return at + count;
}

#else

[[gnu::always_inline]] inline U64 load(const void* at) {
    U64 value;
    std::memcpy(&value, at, sizeof value);
    return value;
}

std::size_t consume(U64* lanes, const std::uint8_t* stripes, std::size_t count, std::size_t at) {
    for (; count > 0; --count, stripes += kStripe) {
        for (std::size_t i = 0; i < 8; ++i) {
            const U64 value = load(stripes + 8 * i), keyed = value ^ load(kSecret + 8 * (at + i));
            lanes[i ^ 1] += value;
            lanes[i] += U64(std::uint32_t(keyed)) * (keyed >> 32);
        }
        if (++at < kPerBlock) continue;
        at = 0;
        for (std::size_t i = 0; i < 8; ++i)
            lanes[i] =
                (lanes[i] ^ lanes[i] >> 47 ^ load(kSecret + kSecretSize - kStripe + 8 * i)) * kSmallPrime;
    }
    return at;
}

#endif

}  // namespace

#if defined(__AVX512F__)
const Kernels Built::avx512{"avx512", consume};
#elif defined(__AVX2__)
const Kernels Built::avx2{"avx2", consume};
#else
const Kernels Built::baseline{"baseline", consume};
#endif

}  // namespace fedsz::stream

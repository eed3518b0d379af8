// AVX-512 (F, BW, DQ, VL, VBMI2): sixteen states in a register, two registers.
#include <immintrin.h>

#include "loops.hpp"

namespace fedsz::uniform {
namespace {

constexpr unsigned kWide = 16;  // states in a register

__m512i bytes_at(const std::uint8_t* p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

// The lower 16 bits of each state.
__m512i low_words(__m512i first, __m512i second) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi32_epi16(first)),
                              _mm512_cvtepi32_epi16(second), 1);
}

template <unsigned Count, bool Contexts>
void decode_as(RunState* runs, const Slot* slots, unsigned bits, std::size_t groups) {
    const __m512i mask = _mm512_set1_epi32((1 << bits) - 1);
    const __m512i lowest = _mm512_set1_epi32(kStateLow);
    const __m512i offset_mask = _mm512_set1_epi32(0xFFF);
    const __m512i shift = _mm512_set1_epi32(int(bits));
    __m512i state[Count][2];
    const std::uint8_t* next[Count];
    for (unsigned run = 0; run < Count; ++run) {
        state[run][0] = _mm512_loadu_si512(runs[run].states);
        state[run][1] = _mm512_loadu_si512(runs[run].states + kWide);
        next[run] = runs[run].words;
    }
    for (std::size_t at = 0; at < groups * kLanes; at += kLanes) {
#pragma GCC unroll 4
        for (unsigned run = 0; run < Count; ++run) {
            runs[run].ahead.fetch(at, kLanes);
#pragma GCC unroll 2
            for (unsigned half = 0; half < 2; ++half) {
                __m512i& own = state[run][half];
                __m512i index = _mm512_and_si512(own, mask);
                if constexpr (Contexts) {
                    const __m512i table = bytes_at(runs[run].contexts + at + kWide * half);
                    index = _mm512_add_epi32(index, _mm512_sllv_epi32(table, shift));
                }
                const __m512i slot = _mm512_i32gather_epi32(index, slots, 4);
                _mm_storeu_si128(
                    reinterpret_cast<__m128i*>(runs[run].symbols + at + kWide * half),
                    _mm512_cvtepi32_epi8(slot));
                const __m512i frequency = _mm512_srli_epi32(slot, 20);
                const __m512i offset = _mm512_and_si512(_mm512_srli_epi32(slot, 8), offset_mask);
                const __m512i s = _mm512_add_epi32(
                    _mm512_mullo_epi32(frequency, _mm512_srlv_epi32(own, shift)), offset);
                const __mmask16 low = _mm512_cmplt_epu32_mask(s, lowest);
                const __m512i word = _mm512_maskz_expand_epi32(
                    low, _mm512_cvtepu16_epi32(_mm256_loadu_si256(
                             reinterpret_cast<const __m256i*>(next[run]))));
                next[run] += 2 * _mm_popcnt_u32(low);
                own = _mm512_mask_or_epi32(s, low, _mm512_slli_epi32(s, 16), word);
            }
        }
    }
    for (unsigned run = 0; run < Count; ++run) {
        _mm512_storeu_si512(runs[run].states, state[run][0]);
        _mm512_storeu_si512(runs[run].states + kWide, state[run][1]);
        advance(runs[run], next[run], groups);
    }
}

void decode(RunState* runs, unsigned count, const Slot* slots, unsigned bits, std::size_t groups) {
    dispatch(runs, count, [&]<unsigned Count, bool Contexts>() {
        decode_as<Count, Contexts>(runs, slots, bits, groups);
    });
}

void encode(std::uint32_t* states, std::uint16_t*& words, const Range* ranges, unsigned bits,
            const std::uint8_t* contexts, const std::uint8_t* symbols, std::size_t groups) {
    const __m512i shift = _mm512_set1_epi32(int(bits)),
                  limit_shift = _mm512_set1_epi32(31 - int(bits)),
                  whole = _mm512_set1_epi32(1 << bits);
    const __m512i frequency_mask = _mm512_set1_epi32(0xFFFF);
    const __m512 below_one = _mm512_set1_ps(kBelowOne);
    __m512i state[2] = {_mm512_loadu_si512(states), _mm512_loadu_si512(states + kWide)};
    std::uint16_t* last = words;
    for (std::size_t group = groups; group-- > 0;) {
        __m512i range[2];
        __mmask16 high[2];
#pragma GCC unroll 2
        for (unsigned half = 0; half < 2; ++half) {
            const std::size_t at = kLanes * group + kWide * half;
            __m512i index = bytes_at(symbols + at);
            if (contexts)
                index = _mm512_or_si512(index, _mm512_slli_epi32(bytes_at(contexts + at), 8));
            range[half] = _mm512_i32gather_epi32(index, ranges, 4);
            high[half] = _mm512_cmpge_epu32_mask(
                state[half],
                _mm512_sllv_epi32(_mm512_and_si512(range[half], frequency_mask), limit_shift));
        }
        const __mmask32 moved = _mm512_kunpackw(high[1], high[0]);
        const int count = _mm_popcnt_u32(moved);
        last -= count;
        _mm512_mask_storeu_epi16(last, __mmask32((std::uint64_t(1) << count) - 1),
                                 _mm512_maskz_compress_epi16(moved, low_words(state[0], state[1])));
#pragma GCC unroll 2
        for (unsigned half = 0; half < 2; ++half) {
            const __m512i frequency = _mm512_and_si512(range[half], frequency_mask);
            const __m512i first = _mm512_srli_epi32(range[half], 16);
            const __m512 inverse = _mm512_div_ps(below_one, _mm512_cvtepi32_ps(frequency));
            const __m512i s = _mm512_mask_srli_epi32(state[half], high[half], state[half], 16);
            const __m512i quotient =
                _mm512_cvttps_epi32(_mm512_mul_ps(_mm512_cvtepi32_ps(s), inverse));
            const __m512i rest = _mm512_sub_epi32(s, _mm512_mullo_epi32(quotient, frequency));
            const __mmask16 under = _mm512_cmpge_epu32_mask(rest, frequency);
            const __m512i next = _mm512_add_epi32(_mm512_sllv_epi32(quotient, shift),
                                                  _mm512_add_epi32(rest, first));
            state[half] =
                _mm512_mask_add_epi32(next, under, next, _mm512_sub_epi32(whole, frequency));
        }
    }
    words = last;
    _mm512_storeu_si512(states, state[0]);
    _mm512_storeu_si512(states + kWide, state[1]);
}

void pack(const std::uint8_t* values, unsigned width, std::uint8_t* planes) {
    const __m512i low = _mm512_loadu_si512(values), high = _mm512_loadu_si512(values + 64);
    for (unsigned bit = 0; bit < width; ++bit) {
        const __m512i one = _mm512_set1_epi8(char(1u << bit));
        const std::uint64_t plane[2] = {_mm512_test_epi8_mask(low, one),
                                        _mm512_test_epi8_mask(high, one)};
        __builtin_memcpy(planes + 16 * bit, plane, 16);
    }
}

void unpack(const std::uint8_t* planes, unsigned width, std::uint8_t* values) {
    __m512i low = _mm512_setzero_si512(), high = low;
    for (unsigned bit = 0; bit < width; ++bit) {
        const __m512i one = _mm512_set1_epi8(char(1u << bit));
        std::uint64_t plane[2];
        __builtin_memcpy(plane, planes + 16 * bit, 16);
        low = _mm512_or_si512(low, _mm512_maskz_mov_epi8(plane[0], one));
        high = _mm512_or_si512(high, _mm512_maskz_mov_epi8(plane[1], one));
    }
    _mm512_storeu_si512(values, low);
    _mm512_storeu_si512(values + 64, high);
}

std::uint64_t others_at_once(const std::uint8_t* quads, std::size_t n, unsigned shift) {
    const __m512i other = _mm512_set1_epi8(char(3u << shift));
    const __m512i some = _mm512_maskz_loadu_epi8(~std::uint64_t(0) >> (64 - n), quads);
    return _mm512_cmpeq_epi8_mask(_mm512_and_si512(some, other), other);
}

// As add_quads, for digits at kShift.
template <unsigned kShift>
const float* add_digits_at(const std::uint8_t* quads, std::size_t n, const float* values,
                           const float* others, float* sum, const float* ahead) {
    // A permutation goes by four bits: those of the digit, and two of any value.
    constexpr bool low = kShift % 4 == 0;
    const __m512 four = _mm512_maskz_broadcast_f32x4(0xFFFF, _mm_loadu_ps(values));
    const __m512i each = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    const __m512 table = low ? four : _mm512_maskz_permutexvar_ps(0xFFFF, each, four);
    const __m512i other = _mm512_set1_epi32(3 << kShift);
    std::size_t i = 0;
    for (; i + kWide <= n; i += kWide) {
        const __m512i quad = bytes_at(quads + i);
        const __mmask16 set = _mm512_cmpeq_epi32_mask(_mm512_and_si512(quad, other), other);
        const __m512i index = kShift < 4 ? quad : _mm512_srli_epi32(quad, 4);
        __m512 v = _mm512_maskz_permutexvar_ps(0xFFFF, index, table);
        v = _mm512_mask_expand_ps(v, set, _mm512_loadu_ps(others));
        others += _mm_popcnt_u32(set);
        __builtin_prefetch(ahead + i, 1);
        _mm512_storeu_ps(sum + i, _mm512_add_ps(_mm512_loadu_ps(sum + i), v));
    }
    return add_quads<Float32>(quads + i, n - i, kShift, values, others, sum + i, ahead);
}

const float* add_digits(const std::uint8_t* quads, std::size_t n, unsigned shift,
                        const float* values, const float* others, float* sum, const float* ahead) {
    constexpr decltype(&add_digits_at<0>) at[] = {add_digits_at<0>, add_digits_at<2>,
                                                  add_digits_at<4>, add_digits_at<6>};
    return at[shift / 2](quads, n, values, others, sum, ahead);
}

}  // namespace

const Kernels Built::avx512 =
    all_kernels("avx512", decode, encode, pack, unpack, others_at_once, add_digits);

}  // namespace fedsz::uniform

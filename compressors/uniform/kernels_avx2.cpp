// AVX2: eight states in a register, four registers.
#include <immintrin.h>

#include <array>

#include "loops.hpp"

namespace fedsz::uniform {
namespace {

constexpr unsigned kWide = 8;  // states in a register
constexpr unsigned kParts = kLanes / kWide;

// For each set of lanes: where each finds its word among those read, and, the other way round,
// which lanes' words stand at the end of a register that is stored just before the last word
// written.
struct Shuffles {
    alignas(32) std::uint8_t spread[256][8];
    alignas(32) std::uint8_t gather[256][8];
};
constexpr Shuffles make_shuffles() {
    Shuffles shuffles{};
    for (unsigned set = 0; set < 256; ++set) {
        unsigned rank = 0, count = 0;
        for (unsigned lane = 0; lane < 8; ++lane) count += set >> lane & 1;
        for (unsigned lane = 0; lane < 8; ++lane) {
            shuffles.spread[set][lane] = std::uint8_t(rank);
            if (set >> lane & 1) shuffles.gather[set][8 - count + rank++] = std::uint8_t(lane);
        }
    }
    return shuffles;
}
constexpr Shuffles kShuffles = make_shuffles();

__m256i bytes_at(const std::uint8_t* p) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
__m256i load(const std::uint32_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
void store(std::uint32_t* p, __m256i v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v); }
unsigned lanes_of(__m256i mask) { return unsigned(_mm256_movemask_ps(_mm256_castsi256_ps(mask))); }

template <unsigned Count, bool Contexts>
void decode_as(RunState* runs, const Slot* slots, unsigned bits, std::size_t groups) {
    const __m256i mask = _mm256_set1_epi32((1 << bits) - 1);
    const __m256i lowest = _mm256_set1_epi32(kStateLow);
    const __m256i offset_mask = _mm256_set1_epi32(0xFFF);
    const __m256i byte_mask = _mm256_set1_epi32(0xFF);
    const __m256i in_order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i shift = _mm256_set1_epi32(int(bits));
    __m256i state[Count][kParts];
    const std::uint8_t* next[Count];
    for (unsigned run = 0; run < Count; ++run) {
        for (unsigned part = 0; part < kParts; ++part)
            state[run][part] = load(runs[run].states + kWide * part);
        next[run] = runs[run].words;
    }
    for (std::size_t at = 0; at < groups * kLanes; at += kLanes) {
#pragma GCC unroll 4
        for (unsigned run = 0; run < Count; ++run) {
            runs[run].ahead.fetch(at, kLanes);
            __m256i symbol[kParts];
#pragma GCC unroll 4
            for (unsigned part = 0; part < kParts; ++part) {
                __m256i& own = state[run][part];
                __m256i index = _mm256_and_si256(own, mask);
                if constexpr (Contexts) {
                    const __m256i table = bytes_at(runs[run].contexts + at + kWide * part);
                    index = _mm256_add_epi32(index, _mm256_sllv_epi32(table, shift));
                }
                const __m256i slot =
                    _mm256_i32gather_epi32(reinterpret_cast<const int*>(slots), index, 4);
                symbol[part] = _mm256_and_si256(slot, byte_mask);
                const __m256i offset = _mm256_and_si256(_mm256_srli_epi32(slot, 8), offset_mask);
                const __m256i s = _mm256_add_epi32(
                    _mm256_mullo_epi32(_mm256_srli_epi32(slot, 20), _mm256_srlv_epi32(own, shift)),
                    offset);
                const __m256i low = _mm256_cmpgt_epi32(lowest, s);
                const unsigned set = lanes_of(low);
                const __m256i read = _mm256_cvtepu16_epi32(
                    _mm_loadu_si128(reinterpret_cast<const __m128i*>(next[run])));
                const __m256i word =
                    _mm256_permutevar8x32_epi32(read, bytes_at(kShuffles.spread[set]));
                next[run] += 2 * _mm_popcnt_u32(set);
                own = _mm256_blendv_epi8(s, _mm256_or_si256(_mm256_slli_epi32(s, 16), word), low);
            }
            const __m256i packed = _mm256_packus_epi16(_mm256_packus_epi32(symbol[0], symbol[1]),
                                                       _mm256_packus_epi32(symbol[2], symbol[3]));
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(runs[run].symbols + at),
                                _mm256_permutevar8x32_epi32(packed, in_order));
        }
    }
    for (unsigned run = 0; run < Count; ++run) {
        for (unsigned part = 0; part < kParts; ++part)
            store(runs[run].states + kWide * part, state[run][part]);
        advance(runs[run], next[run], groups);
    }
}

void decode(RunState* runs, unsigned count, const Slot* slots, unsigned bits, std::size_t groups) {
    dispatch(runs, count, [&]<unsigned Count, bool Contexts>() {
        decode_as<Count, Contexts>(runs, slots, bits, groups);
    });
}

void encode_batch(__m256i (&state)[kParts], std::uint16_t*& words, const Range* ranges,
                  unsigned bits, std::size_t groups) {
    const __m256i shift = _mm256_set1_epi32(int(bits)),
                  limit_shift = _mm256_set1_epi32(31 - int(bits)),
                  whole = _mm256_set1_epi32(1 << bits);
    const __m256i low_mask = _mm256_set1_epi32(0xFFFF);
    const __m256 below_one = _mm256_set1_ps(kBelowOne);
    std::uint16_t* last = words;
    for (std::size_t group = groups; group-- > 0;) {
#pragma GCC unroll 4
        for (unsigned part = kParts; part-- > 0;) {
            const __m256i range = load(ranges + kLanes * group + kWide * part);
            const __m256i frequency = _mm256_and_si256(range, low_mask);
            __m256i s = state[part];
            const __m256i small = _mm256_cmpgt_epi32(_mm256_sllv_epi32(frequency, limit_shift), s);
            const unsigned set = ~lanes_of(small) & 0xFF;
            const __m256i moved = _mm256_permutevar8x32_epi32(_mm256_and_si256(s, low_mask),
                                                              bytes_at(kShuffles.gather[set]));
            const __m256i packed =
                _mm256_permute4x64_epi64(_mm256_packus_epi32(moved, moved), 0xD8);
            _mm_storeu_si128(reinterpret_cast<__m128i*>(last - kWide),
                             _mm256_castsi256_si128(packed));
            last -= _mm_popcnt_u32(set);
            s = _mm256_blendv_epi8(_mm256_srli_epi32(s, 16), s, small);
            const __m256 inverse = _mm256_div_ps(below_one, _mm256_cvtepi32_ps(frequency));
            const __m256i quotient =
                _mm256_cvttps_epi32(_mm256_mul_ps(_mm256_cvtepi32_ps(s), inverse));
            const __m256i rest = _mm256_sub_epi32(s, _mm256_mullo_epi32(quotient, frequency));
            const __m256i exact = _mm256_cmpgt_epi32(frequency, rest);
            const __m256i next =
                _mm256_add_epi32(_mm256_sllv_epi32(quotient, shift),
                                 _mm256_add_epi32(rest, _mm256_srli_epi32(range, 16)));
            state[part] = _mm256_add_epi32(
                next, _mm256_andnot_si256(exact, _mm256_sub_epi32(whole, frequency)));
        }
    }
    words = last;
}

// Looks up the ranges of some groups of symbols, from the last to the first, and calls
// encode(ranges, groups) for them. One by one and ahead of the states: on
// Zen 5 a gather of eight costs twice as much as eight loads that nothing waits for.
template <class Encode>
void in_batches(const Range* ranges, const std::uint8_t* contexts, const std::uint8_t* symbols,
                std::size_t groups, const Encode& encode) {
    constexpr std::size_t most = 32;
    while (groups > 0) {
        const std::size_t batch = groups < most ? groups : most;
        groups -= batch;
        const std::uint8_t* symbol = symbols + kLanes * groups;
        const std::uint8_t* context = contexts ? contexts + kLanes * groups : nullptr;
        Range looked_up[most * kLanes];
        for (std::size_t i = 0; i < batch * kLanes; ++i)
            looked_up[i] = ranges[(context ? std::size_t(context[i]) << 8 : 0) + symbol[i]];
        encode(looked_up, batch);
    }
}

void encode(std::uint32_t* states, std::uint16_t*& words, const Range* ranges, unsigned bits,
            const std::uint8_t* contexts, const std::uint8_t* symbols, std::size_t groups) {
    __m256i state[kParts];
    for (unsigned part = 0; part < kParts; ++part) state[part] = load(states + kWide * part);
    in_batches(ranges, contexts, symbols, groups, [&](const Range* some, std::size_t count) {
        encode_batch(state, words, some, bits, count);
    });
    for (unsigned part = 0; part < kParts; ++part) store(states + kWide * part, state[part]);
}

void pack(const std::uint8_t* values, unsigned width, std::uint8_t* planes) {
    for (unsigned part = 0; part < 4; ++part) {
        const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(values + 32 * part));
        for (unsigned bit = 0; bit < width; ++bit) {
            // A shift of 16-bit units moves a byte's bit to its top all the same.
            const int plane = _mm256_movemask_epi8(_mm256_slli_epi16(v, int(7 - bit)));
            __builtin_memcpy(planes + 16 * bit + 4 * part, &plane, 4);
        }
    }
}

void unpack(const std::uint8_t* planes, unsigned width, std::uint8_t* values) {
    const __m256i byte_of =
        _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit_of = _mm256_set1_epi64x(std::int64_t(0x8040201008040201));
    for (unsigned part = 0; part < 4; ++part) {
        __m256i v = _mm256_setzero_si256();
        for (unsigned bit = 0; bit < width; ++bit) {
            int plane;
            __builtin_memcpy(&plane, planes + 16 * bit + 4 * part, 4);
            const __m256i spread = _mm256_shuffle_epi8(_mm256_set1_epi32(plane), byte_of);
            const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(spread, bit_of), bit_of);
            v = _mm256_or_si256(v, _mm256_and_si256(set, _mm256_set1_epi8(char(1u << bit))));
        }
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(values + 32 * part), v);
    }
}

// As add_quads.
const float* add_digits(const std::uint8_t* quads, std::size_t n, unsigned shift,
                        const float* values, const float* others, float* sum, const float* ahead) {
    const __m128 four = _mm_loadu_ps(values);
    const __m256 eight = _mm256_set_m128(four, four);  // a digit, and whatever bit is above it
    const __m256i three = _mm256_set1_epi32(3);
    const __m128i by = _mm_cvtsi32_si128(int(shift));
    std::size_t i = 0;
    for (; i + kWide <= n; i += kWide) {
        const __m256i digit = _mm256_srl_epi32(bytes_at(quads + i), by);
        __m256 v = _mm256_permutevar8x32_ps(eight, digit);
        unsigned set = lanes_of(_mm256_cmpeq_epi32(_mm256_and_si256(digit, three), three));
        if (set) {
            float each[kWide];
            _mm256_storeu_ps(each, v);
            for (; set; set &= set - 1) each[__builtin_ctz(set)] = *others++;
            v = _mm256_loadu_ps(each);
        }
        _mm256_storeu_ps(sum + i, _mm256_add_ps(_mm256_loadu_ps(sum + i), v));
    }
    return add_quads<Float32>(quads + i, n - i, shift, values, others, sum + i, ahead);
}

}  // namespace

const Kernels Built::avx2 = all_kernels("avx2", decode, encode, pack, unpack, others, add_digits);

}  // namespace fedsz::uniform

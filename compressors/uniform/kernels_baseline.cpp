// What every machine can run. Compilers vectorise loops.hpp for the instruction set that is always
// there: SSE2 on x86-64, NEON on aarch64.
#include <cstring>

#include "loops.hpp"

namespace fedsz::uniform {
namespace {

// One run after the other: scalar code has no use for more states than one run's.
void decode(RunState* runs, unsigned count, const Slot* slots, unsigned bits, std::size_t groups) {
    const std::uint32_t mask = (1u << bits) - 1;
    for (RunState* run = runs; run != runs + count; ++run) {
        // Apart from the run, which a store to a symbol could change as far as compilers know.
        std::uint32_t* const states = run->states;
        const std::uint8_t *next = run->words, *const contexts = run->contexts;
        std::uint8_t* const symbols = run->symbols;
        for (std::size_t at = 0; at < groups * kLanes; at += kLanes) {
#pragma GCC unroll 4
            for (unsigned lane = 0; lane < kLanes; ++lane) {
                std::uint32_t state = states[lane];
                const std::size_t table = contexts ? std::size_t(contexts[at + lane]) << bits : 0;
                const Slot slot = slots[table + (state & mask)];
                symbols[at + lane] = std::uint8_t(slot);
                state = (slot >> 20) * (state >> bits) + (slot >> 8 & 0xFFF);
                // Without a branch: whether a state runs low is close to random.
                const std::uint32_t low = state < kStateLow;
                std::uint16_t word;
                std::memcpy(&word, next, 2);
                states[lane] = state << (16 * low) | (word & (0 - low));
                next += 2 * low;
            }
        }
        advance(*run, next, groups);
    }
}

void encode(std::uint32_t* states, std::uint16_t*& words, const Range* ranges, unsigned bits,
            const std::uint8_t* contexts, const std::uint8_t* symbols, std::size_t groups) {
    std::uint16_t* last = words;
    for (std::size_t i = groups * kLanes; i-- > 0;) {
        std::uint32_t& state = states[i % kLanes];
        const std::size_t table = contexts ? std::size_t(contexts[i]) << 8 : 0;
        const Range range = ranges[table + symbols[i]];
        const std::uint32_t frequency = range & 0xFFFF, first = range >> 16;
        const bool high = state >= frequency << (31 - bits);
        last[-1] = std::uint16_t(state);
        last -= high;
        const std::uint32_t s = high ? state >> 16 : state;
        state = ((s / frequency) << bits) + s % frequency + first;
    }
    words = last;
}

// Eight bytes at a time: a multiplication gathers one bit of each, or spreads eight to a byte each.
void pack(const std::uint8_t* values, unsigned width, std::uint8_t* planes) {
    for (std::size_t i = 0; i < kPlane / 8; ++i) {
        std::uint64_t eight;
        std::memcpy(&eight, values + 8 * i, 8);
        for (unsigned bit = 0; bit < width; ++bit) {
            const std::uint64_t ones = (eight >> bit) & 0x0101010101010101;
            planes[16 * bit + i] = std::uint8_t((ones * 0x0102040810204080) >> 56);
        }
    }
}

void unpack(const std::uint8_t* planes, unsigned width, std::uint8_t* values) {
    for (std::size_t i = 0; i < kPlane / 8; ++i) {
        std::uint64_t eight = 0;
        for (unsigned bit = 0; bit < width; ++bit) {
            const std::uint64_t spread =
                (std::uint64_t(planes[16 * bit + i]) * 0x0101010101010101) & 0x8040201008040201;
            eight |= (((spread + 0x7F7F7F7F7F7F7F7F) >> 7) & 0x0101010101010101) << bit;
        }
        std::memcpy(values + 8 * i, &eight, 8);
    }
}

}  // namespace

const Kernels Built::baseline =
    all_kernels("baseline", decode, encode, pack, unpack, others, add_quads<Float32>);

}  // namespace fedsz::uniform

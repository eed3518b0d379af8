// The loops over quads that compilers vectorise by themselves; see loops.hpp.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels.hpp"

namespace fedsz::uniform {
namespace {

template <class E>
const typename E::Compute* add_quads(const std::uint8_t* quads, std::size_t n, unsigned shift,
                                     const typename E::Compute* values,
                                     const typename E::Compute* others,
                                     typename E::Compute* __restrict sum,
                                     const typename E::Compute*) {
    for (std::size_t i = 0; i < n; ++i) {
        const unsigned digit = quads[i] >> shift & 3;
        const bool other = digit == 3;
        sum[i] += *(other ? others : values + digit);
        others += other;
    }
    return others;
}

void from_digits(const std::uint8_t* quads, std::size_t n, unsigned shift, std::uint8_t usual,
                std::uint8_t* __restrict tokens) {
    const auto above = std::uint8_t(1u << shift), below = std::uint8_t(2u << shift);
    for (std::size_t i = 0; i < n; ++i)
        tokens[i] = std::uint8_t(usual + ((quads[i] & above) != 0) - ((quads[i] & below) != 0));
}

void count_digits(const std::uint8_t* quads, std::size_t n, std::uint64_t counts[3]) {
    constexpr std::size_t lanes = 64, most = 63;  // times four digits, which a byte can count
    // How many of the bits 0, 2, 4 and 6 are set.
    const auto count = [](unsigned bits) {
        const unsigned pairs = (bits & 0x11) + (bits >> 2 & 0x11);
        return std::uint8_t((pairs & 15) + (pairs >> 4));
    };
    counts[0] = counts[1] = counts[2] = 0;
    for (std::size_t at = 0; at < n;) {
        std::uint8_t low[lanes] = {}, high[lanes] = {}, both[lanes] = {};
        const auto look = [&](std::uint8_t quad, std::size_t lane) {
            low[lane] = std::uint8_t(low[lane] + count(quad & 0x55));
            high[lane] = std::uint8_t(high[lane] + count(quad >> 1 & 0x55));
            both[lane] = std::uint8_t(both[lane] + count(quad & quad >> 1 & 0x55));
        };
        for (std::size_t times = 0; times < most && at + lanes <= n; ++times, at += lanes)
            for (std::size_t lane = 0; lane < lanes; ++lane) look(quads[at + lane], lane);
        if (n - at < lanes)
            for (std::size_t lane = 0; at < n; ++lane, ++at) look(quads[at], lane);
        for (std::size_t lane = 0; lane < lanes; ++lane) {
            counts[0] += std::uint64_t(low[lane] - both[lane]);
            counts[1] += std::uint64_t(high[lane] - both[lane]);
            counts[2] += both[lane];
        }
    }
}

[[maybe_unused]] std::uint64_t others(const std::uint8_t* quads, std::size_t n, unsigned shift) {
    std::uint64_t set = 0;
    for (std::size_t i = 0; i < n; i += 8) {
        std::uint64_t eight = 0;
        __builtin_memcpy(&eight, quads + i, n - i < 8 ? n - i : 8);
        const std::uint64_t ones = eight >> shift & eight >> (shift + 1) & 0x0101010101010101;
        set |= (ones * 0x0102040810204080 >> 56) << i;
    }
    return set;
}

void to_digits(const std::uint8_t* tokens, std::size_t n, unsigned shift, std::uint8_t usual,
               std::uint8_t* __restrict quads) {
    const auto above = std::uint8_t(usual + 1), below = std::uint8_t(usual - 1);
    const auto one = std::uint8_t(1u << shift), two = std::uint8_t(2u << shift);
    const auto three = std::uint8_t(one | two);
    for (std::size_t i = 0; i < n; ++i) {
        const std::uint8_t token = tokens[i];
        const std::uint8_t other = token == below ? two : three;
        const std::uint8_t digit = token == above ? one : other;
        quads[i] = std::uint8_t(quads[i] | (token == usual ? 0 : digit));
    }
}

}  // namespace
}  // namespace fedsz::uniform

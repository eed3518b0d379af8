// Frequency tables: fitted to counts, written into a payload, and laid out for the coder.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "binary.hpp"
#include "kernels.hpp"
#include "memory.hpp"

namespace fedsz::uniform {

inline constexpr unsigned kSymbols = 256;
inline constexpr unsigned kMinBits = 8, kMaxBits = 12;
inline constexpr int kMaxIndex = 79;  // of a frequency, which is below 2^kMaxBits

using Counts = std::array<std::uint32_t, kSymbols>;

// Frequencies of the symbols, in 2^-bits. All but one are numbers of at most four significant bits,
// written by their index (`frequency_of`); the `rest`, the most frequent, takes what is left.
struct Table {
    std::array<std::uint8_t, kSymbols> index{};  // of `rest`: 0
    unsigned first = 0, last = 0, rest = 0;      // symbols outside first..last do not occur

    // Index 0 to 15 stand for themselves, then come eight steps an octave.
    static constexpr std::uint32_t frequency_of(unsigned index) {
        return index < 8 ? index : (8 + (index & 7)) << ((index >> 3) - 1);
    }

    // What is left for the rest; not positive for indices that no encoder writes.
    std::int64_t rest_frequency(unsigned bits) const;
};

// The index whose frequency is nearest to f >= 1, from below where two are as near.
unsigned index_of(std::uint32_t f);

// The table for `counts`, not all of them zero, in which every symbol that occurs has a frequency.
Table fit(const Counts& counts, unsigned bits);

// Symbols from first to last, where alone counts are not zero.
struct Occurring {
    unsigned first = 0, last = kSymbols - 1;
};

// The bits that coding `counts` takes with a table of its own, and a guess at those of the table.
struct Cost {
    double tokens = 0, table = 0;
    double bits() const { return tokens + table; }
};
Cost cost_of(const Counts& counts, Occurring symbols = {});

// Tables are written one after the other, each of its frequencies as the difference from a guess.
class TableWriter {
public:
    void put(BinaryEncoder& coder, const Table& table, unsigned bits);

private:
    Number bound_, magnitude_[3];
    Table previous_;
    friend class TableReader;
};

class TableReader {
public:
    // Throws CorruptPayload where frequencies do not sum up to 2^bits.
    Table get(BinaryDecoder& coder, unsigned bits);

private:
    TableWriter state_;
};

// Of each symbol, in 2^-bits; all together are 1, and none alone.
using Frequencies = std::array<std::uint16_t, kSymbols>;
Frequencies frequencies_of(const Table& table, unsigned bits);
Vector<Frequencies> frequencies_of(std::span<const Table> tables, unsigned bits);

void lay_out(const Frequencies& frequencies, std::span<Range, kSymbols> ranges);
void lay_out(const Frequencies& frequencies, std::span<Slot> slots);

// Base-2 logarithm by arithmetic alone, so that all machines decide alike; error below 1e-7.
double log2_of(double x);

}  // namespace fedsz::uniform

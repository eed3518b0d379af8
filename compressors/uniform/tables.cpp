#include "tables.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

namespace fedsz::uniform {
namespace {

// What the index of a symbol is guessed from: that of the symbol on its left, past the rest, and
// how the two differ in the table before.
unsigned guess(const Table& table, const Table& previous, unsigned symbol) {
    const unsigned back = symbol - 1 == table.rest ? 2 : 1;
    if (symbol < table.first + back) return previous.index[symbol];
    const unsigned left = symbol - back;
    const int step = int(previous.index[symbol]) - int(previous.index[left]);
    return unsigned(std::clamp(int(table.index[left]) + step, 0, kMaxIndex));
}

// A table as the next one's guesses see it: with an index for the rest too.
Table completed(Table table, unsigned bits) {
    table.index[table.rest] = std::uint8_t(index_of(std::uint32_t(table.rest_frequency(bits))));
    return table;
}

// n log2 n, most often of small n.
double times_log2(std::uint32_t n) {
    static const auto small = [] {
        std::array<double, 1024> values{};
        for (std::size_t i = 1; i < values.size(); ++i) values[i] = double(i) * log2_of(double(i));
        return values;
    }();
    return n < small.size() ? small[n] : n * log2_of(n);
}

}  // namespace

unsigned index_of(std::uint32_t f) {
    if (f < 8) return f;
    const unsigned octave = unsigned(std::bit_width(f)) - 4;
    const unsigned below = ((octave + 1) << 3) + ((f >> octave) & 7);
    const std::uint32_t low = Table::frequency_of(below), high = Table::frequency_of(below + 1);
    return f - low <= high - f ? below : below + 1;
}

double log2_of(double x) {
    const auto bits = std::bit_cast<std::uint64_t>(x);
    int exponent = int(bits >> 52) - 1023;
    double m = std::bit_cast<double>((bits & 0xFFFFFFFFFFFFF) | 0x3FF0000000000000);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        ++exponent;
    }
    // log2(m) = 2 / ln 2 * artanh(z), z = (m - 1) / (m + 1), |z| < 0.172
    const double z = (m - 1) / (m + 1), zz = z * z;
    const double series = 1 + zz * (1.0 / 3 + zz * (1.0 / 5 + zz * (1.0 / 7 + zz * (1.0 / 9))));
    return exponent + 2.8853900817779268 * z * series;
}

std::int64_t Table::rest_frequency(unsigned bits) const {
    std::int64_t left = std::int64_t(1) << bits;
    for (unsigned symbol = first; symbol <= last; ++symbol) left -= frequency_of(index[symbol]);
    return left;
}

Table fit(const Counts& counts, unsigned bits) {
    Table table;
    const std::uint32_t sum = 1u << bits;
    std::uint64_t total = 0;
    unsigned occurring = 0;
    table.first = kSymbols;
    for (unsigned symbol = 0; symbol < kSymbols; ++symbol) {
        if (counts[symbol] == 0) continue;
        table.first = std::min(table.first, symbol);
        table.last = symbol;
        total += counts[symbol];
        ++occurring;
        if (counts[symbol] > counts[table.rest] || counts[table.rest] == 0) table.rest = symbol;
    }
    if (occurring == 1) {
        // A frequency of 2^bits has no room in a slot: a neighbour that never comes takes one.
        const unsigned other = table.rest ^ 1;
        table.first = std::min(table.rest, other);
        table.last = std::max(table.rest, other);
        table.index[other] = 1;
        return table;
    }
    for (unsigned symbol = table.first; symbol <= table.last; ++symbol) {
        if (symbol == table.rest || counts[symbol] == 0) continue;
        const std::uint64_t f = (std::uint64_t(counts[symbol]) * sum + total / 2) / total;
        table.index[symbol] = std::uint8_t(index_of(std::max<std::uint32_t>(std::uint32_t(f), 1)));
    }
    // Rounding up may have taken more than there is. The rest, of all the most frequent, must keep
    // its share: the next most frequent give way.
    const std::int64_t fair = std::int64_t(std::uint64_t(counts[table.rest]) * sum / total);
    while (table.rest_frequency(bits) < std::max<std::int64_t>(1, fair / 2)) {
        unsigned largest = table.first == table.rest ? table.last : table.first;
        for (unsigned symbol = table.first; symbol <= table.last; ++symbol)
            if (symbol != table.rest && table.index[symbol] > table.index[largest])
                largest = symbol;
        if (table.index[largest] <= 1) break;
        --table.index[largest];
    }
    return table;
}

Cost cost_of(const Counts& counts, Occurring symbols) {
    double sum = 0;
    std::uint64_t total = 0;
    unsigned occurring = 0;
    for (unsigned symbol = symbols.first; symbol <= symbols.last; ++symbol) {
        const std::uint32_t count = counts[symbol];
        if (count == 0) continue;
        total += count;
        ++occurring;
        sum += times_log2(count);
    }
    if (total == 0) return {};
    return {double(total) * log2_of(double(total)) - sum, 16 + 3.5 * occurring};
}

void TableWriter::put(BinaryEncoder& coder, const Table& table, unsigned bits) {
    bound_.put(coder, table.first);
    bound_.put(coder, table.last - table.first);
    bound_.put(coder, table.rest - table.first);
    unsigned last_size = 0;
    for (unsigned symbol = table.first; symbol <= table.last; ++symbol) {
        if (symbol == table.rest) continue;
        const int error = int(table.index[symbol]) - int(guess(table, previous_, symbol));
        magnitude_[last_size].put(coder, unsigned(zigzag(error)));
        last_size = error == 0 ? 0 : error > 4 || error < -4 ? 2 : 1;
    }
    previous_ = completed(table, bits);
}

Table TableReader::get(BinaryDecoder& coder, unsigned bits) {
    Table table;
    table.first = state_.bound_.get(coder);
    table.last = table.first + state_.bound_.get(coder);
    table.rest = table.first + state_.bound_.get(coder);
    if (table.last >= kSymbols || table.rest > table.last)
        throw CorruptPayload("a table's symbols are out of range");
    unsigned last_size = 0;
    for (unsigned symbol = table.first; symbol <= table.last; ++symbol) {
        if (symbol == table.rest) continue;
        const auto error = unzigzag(state_.magnitude_[last_size].get(coder));
        const auto index = std::int64_t(guess(table, state_.previous_, symbol)) + error;
        if (index < 0 || index > kMaxIndex)
            throw CorruptPayload("a table's frequency is out of range");
        table.index[symbol] = std::uint8_t(index);
        last_size = error == 0 ? 0 : error > 4 || error < -4 ? 2 : 1;
    }
    const std::int64_t rest = table.rest_frequency(bits);
    if (rest < 1 || rest > 4095) throw CorruptPayload("a table's frequencies do not sum up");
    state_.previous_ = completed(table, bits);
    return table;
}

Frequencies frequencies_of(const Table& table, unsigned bits) {
    Frequencies frequencies{};
    for (unsigned symbol = table.first; symbol <= table.last; ++symbol)
        frequencies[symbol] = std::uint16_t(Table::frequency_of(table.index[symbol]));
    frequencies[table.rest] = std::uint16_t(table.rest_frequency(bits));
    return frequencies;
}

Vector<Frequencies> frequencies_of(std::span<const Table> tables, unsigned bits) {
    Vector<Frequencies> all;
    all.reserve(tables.size());
    for (const Table& table : tables) all.push_back(frequencies_of(table, bits));
    return all;
}

void lay_out(const Frequencies& frequencies, std::span<Range, kSymbols> ranges) {
    std::uint32_t first = 0;
    for (unsigned symbol = 0; symbol < kSymbols; ++symbol) {
        const std::uint32_t f = frequencies[symbol];
        ranges[symbol] = f ? f | first << 16 : 0;
        first += f;
    }
}

void lay_out(const Frequencies& frequencies, std::span<Slot> slots) {
    auto slot = slots.begin();
    for (unsigned symbol = 0; symbol < kSymbols; ++symbol) {
        const std::uint32_t f = frequencies[symbol];
        for (std::uint32_t offset = 0; offset < f; ++offset)
            *slot++ = f << 20 | offset << 8 | symbol;
    }
}

}  // namespace fedsz::uniform

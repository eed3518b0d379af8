#include "quads.hpp"

#include <algorithm>
#include <numeric>

#include "parallel.hpp"
#include "tokens.hpp"

namespace fedsz::uniform {

std::int64_t QuadTable::rest_frequency(unsigned bits) const {
    std::int64_t left = std::int64_t(1) << bits;
    for (unsigned kind = 1; kind < kKinds; ++kind)
        left -= std::int64_t(Table::frequency_of(index[kind])) * kKindsOfQuads.size[kind];
    return left;
}

Spelling spell_out_rare(Counts& counts, unsigned bits) {
    const std::uint64_t total = std::accumulate(counts.begin(), counts.begin() + kKinds, 0ull);
    std::array<bool, kKinds> rare{};
    for (unsigned kind = 0; kind < kKinds; ++kind) {
        const unsigned units = kKindsOfQuads.units[kind];
        // A token takes some three bits more than a digit, and slots 2^-bits log2(e) of all quads.
        const std::uint64_t spelled = std::uint64_t(counts[kind]) * (1 + 2 * units) << bits;
        rare[kind] = units > 0 && counts[kind] > 0 && spelled < total * kKindsOfQuads.size[kind];
        if (!rare[kind]) continue;
        counts[kKindsOfQuads.spelled_out[kind]] += counts[kind];
        counts[kind] = 0;
    }
    Spelling spelling;
    for (unsigned quad = 0; quad < kSymbols; ++quad) {
        const unsigned not_usual = (quad | quad >> 1) & 0x55;
        spelling[quad] = std::uint8_t(rare[kKindsOfQuads.of[quad]] ? 3 * not_usual : quad);
    }
    return spelling;
}

QuadTable fit_quads(const Counts& counts, unsigned bits) {
    QuadTable table;
    const std::uint64_t total = std::accumulate(counts.begin(), counts.begin() + kKinds, 0ull);
    for (unsigned kind = 1; kind < kKinds; ++kind) {
        if (counts[kind] == 0) continue;
        const std::uint64_t all = total * kKindsOfQuads.size[kind];
        const std::uint64_t f = ((std::uint64_t(counts[kind]) << bits) + all / 2) / all;
        const unsigned index = index_of(std::uint32_t(f));
        table.index[kind] = std::uint8_t(std::clamp(index, 1u, unsigned(kMaxIndex)));
    }
    if (total == counts[0]) table.index[1] = 1;  // 2^bits has no room in a slot
    // Rounding up may have taken more than there is. Quad 0 must keep its share: whatever has the
    // most slots gives way.
    const auto fair = std::int64_t((std::uint64_t(counts[0]) << bits) / total);
    while (table.rest_frequency(bits) < std::max<std::int64_t>(1, fair / 2)) {
        unsigned largest = 0;
        std::uint32_t most = 0;
        for (unsigned kind = 1; kind < kKinds; ++kind) {
            const std::uint32_t slots =
                Table::frequency_of(table.index[kind]) * kKindsOfQuads.size[kind];
            if (table.index[kind] > 1 && slots > most) largest = kind, most = slots;
        }
        if (largest == 0) break;
        --table.index[largest];
    }
    return table;
}

Frequencies frequencies_of(const QuadTable& table, unsigned bits) {
    std::array<std::uint16_t, kKinds> of_kind;
    for (unsigned kind = 0; kind < kKinds; ++kind)
        of_kind[kind] = std::uint16_t(Table::frequency_of(table.index[kind]));
    of_kind[0] = std::uint16_t(table.rest_frequency(bits));
    Frequencies frequencies;
    for (unsigned quad = 0; quad < kSymbols; ++quad)
        frequencies[quad] = of_kind[kKindsOfQuads.of[quad]];
    return frequencies;
}

void QuadTableWriter::put(BinaryEncoder& coder, const QuadTable& table) {
    for (unsigned kind = 1; kind < kKinds; ++kind) {
        const int error = int(table.index[kind]) - int(previous_.index[kind]);
        size_[kind].put(coder, unsigned(zigzag(error)));
    }
    previous_ = table;
}

QuadTable QuadTableReader::get(BinaryDecoder& coder, unsigned bits) {
    QuadTable table;
    for (unsigned kind = 1; kind < kKinds; ++kind) {
        const auto error = unzigzag(state_.size_[kind].get(coder));
        const std::int64_t index = state_.previous_.index[kind] + error;
        if (index < 0 || index > kMaxIndex)
            throw CorruptPayload("a frequency of quads is out of range");
        table.index[kind] = std::uint8_t(index);
    }
    const std::int64_t rest = table.rest_frequency(bits);
    if (rest < 1 || rest > 4095) throw CorruptPayload("frequencies of quads do not sum up");
    state_.previous_ = table;
    return table;
}

QuadRows::QuadRows(const Contexts& contexts)
    : rows_(contexts.geometry.rows), columns_(contexts.geometry.columns) {
    if (contexts.classes == 1) return;
    order_.resize(rows_);
    std::array<std::size_t, 257> begin{};
    for (const std::uint8_t row : contexts.row) ++begin[row + 1u];
    std::partial_sum(begin.begin(), begin.end(), begin.begin());
    for (std::size_t row = 0; row < rows_; ++row)
        order_[begin[contexts.row[row]]++] = std::uint32_t(row);
}

Contexts QuadRows::grouped(const Contexts& contexts) const {
    Contexts grouped = contexts;
    grouped.geometry.rows = groups();
    grouped.row.clear();
    if (contexts.classes == 1) return grouped;
    for (std::size_t group = 0; group < groups(); ++group) {
        unsigned sum = 0;
        for (unsigned i = 0; i < size(group); ++i) sum += contexts.row[row(group, i)];
        grouped.row.push_back(std::uint8_t(sum / size(group)));
    }
    return grouped;
}

Vector<std::uint8_t> to_quads(const Kernels& kernels, std::span<const std::uint8_t> tokens,
                                   const QuadRows& rows, std::uint8_t usual, unsigned threads) {
    Vector<std::uint8_t> quads(rows.quads());
    parallel_for(rows.groups(), threads, [&](unsigned, std::size_t group) {
        std::uint8_t* const out = &quads[group * rows.columns()];
        for (unsigned i = 0; i < rows.size(group); ++i) {
            const std::uint8_t* const row = &tokens[rows.row(group, i) * rows.columns()];
            kernels.to_digits(row, rows.columns(), 2 * i, usual, out);
        }
    });
    return quads;
}

Vector<Counts> count_kinds(const Contexts& contexts, std::span<const std::uint8_t> quads,
                                unsigned threads) {
    Vector<std::uint8_t> same(contexts.count());
    std::iota(same.begin(), same.end(), std::uint8_t(0));
    const ContextMap map(contexts, same);
    const Chunks chunks{quads.size(), std::size_t(1) << 16};
    // In turn, since one count cannot be added to again at once.
    constexpr std::size_t turns = 4;
    using Parts = std::array<std::array<std::uint32_t, 16>, turns>;
    Vector<Vector<Parts>> counted(threads);
    parallel_for(chunks.count(), threads, [&](unsigned worker, std::size_t chunk) {
        Vector<Parts>& parts = counted[worker];
        parts.resize(contexts.count());
        const std::size_t end = chunks.begin(chunk) + chunks.length(chunk);
        for (std::size_t at = chunks.begin(chunk); at < end; at += kBlock) {
            std::uint8_t context[kBlock];
            const std::size_t n = std::min(kBlock, end - at);
            map.fill(at, nullptr, std::span(context).first(n));
#pragma GCC unroll 4
            for (std::size_t i = 0; i < n; ++i)
                ++parts[context[i]][i % turns][kKindsOfQuads.of[quads[at + i]]];
        }
    });
    Vector<Counts> counts(contexts.count());
    for (const auto& of_worker : counted)
        for (std::size_t context = 0; context < of_worker.size(); ++context)
            for (const auto& part : of_worker[context])
                for (unsigned kind = 0; kind < kKinds; ++kind) counts[context][kind] += part[kind];
    return counts;
}

void spell(const ContextMap& map, std::span<const Spelling> spellings,
           std::span<std::uint8_t> quads, unsigned threads) {
    const Chunks blocks{quads.size(), kBlock};
    parallel_for(blocks.count(), threads, [&](unsigned, std::size_t i) {
        std::uint8_t table[kBlock];
        const auto some = quads.subspan(blocks.begin(i), blocks.length(i));
        map.fill(blocks.begin(i), nullptr, std::span(table).first(some.size()));
        for (std::size_t q = 0; q < some.size(); ++q) some[q] = spellings[table[q]][some[q]];
    });
}

Vector<std::uint8_t> others_of(const Kernels& kernels, std::span<const std::uint8_t> tokens,
                                    const QuadRows& rows, std::span<const std::uint8_t> quads,
                                    std::size_t begin, std::size_t end) {
    Vector<std::uint8_t> others;
    for_each_piece(rows, begin, end, [&](const QuadPiece& piece) {
        const std::uint8_t* const token = &tokens[piece.row * rows.columns() + piece.column];
        for_each_other(kernels, quads.subspan(piece.at, piece.n), piece.shift,
                       [&](std::size_t i) { others.push_back(token[i]); });
    });
    return others;
}

}  // namespace fedsz::uniform

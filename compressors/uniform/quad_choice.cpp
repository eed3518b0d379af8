#include "quad_choice.hpp"

#include <algorithm>
#include <numeric>

namespace fedsz::uniform {
namespace {

constexpr std::size_t kFewElements = 1 << 14;  // are decoded before tables of quads are laid out
constexpr double kLeastBits = 0.125;           // where tokens take less, states of chunks cost much
constexpr double kMostBits = 1.75;             // where they take more, few quads are frequent
constexpr double kWorthSpeed = 1.008;          // as many times the bits

// What is known of quads before a model is made of it.
struct Grouped {
    Vector<std::uint8_t> quads;
    Choice choice;
};

Grouped group(const Kernels& kernels, std::span<const std::uint8_t> tokens, const Contexts& full,
              std::uint8_t usual, unsigned threads) {
    const QuadRows rows(full);
    Vector<std::uint8_t> quads = to_quads(kernels, tokens, rows, usual, threads);
    Choice choice = choose(full, count_kinds(rows.grouped(full), quads, threads));
    if (choice.contexts.classes != full.classes)  // without them, other rows stand together
        return group(kernels, tokens, choice.contexts, usual, threads);
    for (const Counts& of_table : choice.counts)  // all quads of a kind are as frequent
        for (unsigned kind = 0; kind < kKinds; ++kind)
            choice.bits += of_table[kind] * log2_of(kKindsOfQuads.size[kind]);
    return {std::move(quads), std::move(choice)};
}

}  // namespace

std::optional<QuadChoice> choose_quads(const Kernels& kernels, std::span<const std::uint8_t> tokens,
                                       const Choice& plain, const Contexts& full,
                                       unsigned threads) {
    const double bits = plain.bits / double(tokens.size());
    if (tokens.size() < kFewElements || plain.contexts.side != Side::none ||
        !fits_quads(full.geometry) || bits < kLeastBits || bits > kMostBits)
        return {};
    Counts others{};  // of the tokens behind quads
    for (const Counts& some : plain.counts)
        for (unsigned s = 0; s < kSymbols; ++s) others[s] += some[s];
    const auto usual = std::uint8_t(std::ranges::max_element(others) - others.begin());
    if (usual == 0 || usual == kSymbols - 1) return {};
    others[usual] = others[usual - 1u] = others[usual + 1u] = 0;

    auto [quads, choice] = group(kernels, tokens, full, usual, threads);
    choice.bits += cost_of(others).bits();
    if (choice.bits > kWorthSpeed * plain.bits) return {};

    Model model{std::move(choice.contexts)};
    Vector<QuadTable> tables;
    Vector<Spelling> spellings;
    std::uint32_t spelled = 0;
    for (Counts& of_table : choice.counts) {
        const Counts before = of_table;
        spellings.push_back(spell_out_rare(of_table, model.bits));
        tables.push_back(fit_quads(of_table, model.bits));
        for (unsigned kind = 0; kind < kKinds; ++kind)
            if (of_table[kind] == 0) spelled += before[kind] * kKindsOfQuads.units[kind];
    }
    const std::size_t count = std::accumulate(others.begin(), others.end(), std::size_t(spelled));
    if (count > most_others(tokens.size())) return {};
    // Half of what is spelled out, more or less; a table codes something.
    others[usual - 1u] = others[usual + 1u] = spelled / 2 + 1;
    model.tables.push_back(fit(others, model.bits));
    const QuadRows rows(model.contexts);
    model.quads.emplace(QuadModel{rows, rows.grouped(model.contexts), std::move(tables)});
    spell(ContextMap(model.of_symbols(), model.contexts.table), spellings, quads, threads);
    return QuadChoice{usual, std::move(quads), std::move(model), choice.bits};
}

}  // namespace fedsz::uniform

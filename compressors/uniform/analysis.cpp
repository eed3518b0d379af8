#include "analysis.hpp"

#include <algorithm>
#include <bit>
#include <numeric>

#include "survey.hpp"

namespace fedsz::uniform {
namespace {

constexpr double kRunBits = 8 * 24;  // of a run beside the tokens: its states, lengths and geometry
constexpr int kPerOctave = 3;
constexpr int kLowest = -5;  // octaves: below 2^-5 of a step, scales make no difference

// Base-2 logarithm times 256 of an integer, by squaring; the same on all machines.
int log2_256(std::uint64_t v) {
    if (v == 0) return -64 * 256;
    const int exponent = int(std::bit_width(v)) - 1;
    std::uint64_t m = exponent >= 31 ? v >> (exponent - 31) : v << (31 - exponent);  // 1.31 bits
    int fraction = 0;
    for (int bit = 7; bit >= 0; --bit) {
        m = (m * m) >> 31;
        // Without a branch: whether a square reaches 2 is close to random.
        const auto two = unsigned(m >> 32);
        m >>= two;
        fraction |= int(two << bit);
    }
    return exponent * 256 + fraction;
}

int round_to_class(int log_256) {
    const int scaled = log_256 * kPerOctave + 128;
    return scaled >= 0 ? scaled / 256 : -((255 - scaled) / 256);
}

// Stores values less the least of them, which it returns; the range is clamped from below.
int store(std::span<const int> values, Vector<std::uint8_t>& out) {
    const int high = *std::ranges::max_element(values);
    const int low = std::max(*std::ranges::min_element(values), high - 127);
    out.resize(values.size());
    std::ranges::transform(values, out.begin(),
                           [&](int v) { return std::uint8_t(std::max(v, low) - low); });
    return low;
}

void add(Counts& to, const Counts& counts, Occurring symbols) {
    for (unsigned symbol = symbols.first; symbol <= symbols.last; ++symbol)
        to[symbol] += counts[symbol];
}

}  // namespace

void classify(std::span<const std::uint64_t> rows, std::span<const std::uint64_t> columns,
              std::size_t n, unsigned most, Contexts& contexts) {
    const std::uint64_t total = std::reduce(rows.begin(), rows.end());
    const auto mean = [](std::uint64_t of, std::size_t count) {
        return log2_256(of) - log2_256(count);
    };
    const int overall = mean(total, n);
    // Rows relative to all, columns absolute: their sum is the logarithm of the scale.
    Vector<int> row(rows.size()), column(columns.size());
    std::ranges::transform(rows, row.begin(), [&](std::uint64_t s) {
        return round_to_class(mean(s, n / rows.size()) - overall);
    });
    std::ranges::transform(columns, column.begin(), [&](std::uint64_t s) {
        return round_to_class(mean(s, n / columns.size()) - kScaleBits * 256);
    });
    const int shifted = store(row, contexts.row) + store(column, contexts.column);
    const int highest = shifted + *std::ranges::max_element(contexts.row) +
                        *std::ranges::max_element(contexts.column);
    const int lowest = std::max({shifted, kLowest * kPerOctave, highest - int(most) + 1});
    contexts.offset = lowest - shifted;
    contexts.classes = unsigned(std::clamp(highest - lowest + 1, 1, int(most)));
    if (contexts.classes == 1) {
        contexts.row.clear();
        contexts.column.clear();
    }
}

namespace {

// Neighbouring classes that share a table.
struct Group {
    Counts counts;
    Cost cost;
    unsigned classes;

    bool empty() const { return cost.table == 0; }
};

// Joins neighbours for as long as a table costs more than it saves.
Vector<Group> merge(std::span<const Counts> counts, Occurring symbols) {
    Vector<Group> groups, joined;  // joined[i]: groups i and i + 1
    const auto join = [&](const Group& a, const Group& b) {
        Group both{a.counts, {}, a.classes + b.classes};
        add(both.counts, b.counts, symbols);
        both.cost = cost_of(both.counts, symbols);
        return both;
    };
    for (const Counts& of_class : counts) {
        Group group{of_class, cost_of(of_class, symbols), 1};
        if (!groups.empty() && (group.empty() || groups.back().empty()))
            groups.back() = join(groups.back(), group);
        else
            groups.push_back(group);
    }
    for (std::size_t i = 0; i + 1 < groups.size(); ++i)
        joined.push_back(join(groups[i], groups[i + 1]));
    while (!joined.empty()) {
        const auto gain = [&](std::size_t i) {
            return groups[i].cost.bits() + groups[i + 1].cost.bits() - joined[i].cost.bits();
        };
        std::size_t best = 0;
        for (std::size_t i = 1; i < joined.size(); ++i)
            if (gain(i) > gain(best)) best = i;
        if (gain(best) <= 0) break;
        groups[best] = joined[best];
        groups.erase(groups.begin() + std::ptrdiff_t(best) + 1);
        joined.erase(joined.begin() + std::ptrdiff_t(best));
        if (best < joined.size()) joined[best] = join(groups[best], groups[best + 1]);
        if (best > 0) joined[best - 1] = join(groups[best - 1], groups[best]);
    }
    return groups;
}

Choice evaluate(Contexts contexts, std::span<const Counts> counts, Occurring symbols) {
    Choice choice{std::move(contexts), {}, 0};
    choice.contexts.table.clear();
    for (std::size_t at = 0; at < counts.size(); at += choice.contexts.classes) {
        for (Group& group : merge(counts.subspan(at, choice.contexts.classes), symbols)) {
            if (group.empty()) group.counts[choice.contexts.centre] = 1;  // a table codes something
            choice.bits += group.cost.bits();
            choice.contexts.table.insert(choice.contexts.table.end(), group.classes,
                                         std::uint8_t(choice.counts.size()));
            choice.counts.push_back(group.counts);
        }
    }
    if (choice.contexts.classes > 1) {
        Counts steps{};
        for (const std::uint8_t step : differences(choice.contexts)) ++steps[step];
        choice.bits += cost_of(steps).bits() + kRunBits;
    }
    return choice;
}

}  // namespace

Vector<std::uint8_t> differences(const Contexts& contexts) {
    Vector<std::uint8_t> steps;
    steps.reserve(contexts.row.size() + contexts.column.size());
    std::uint8_t last = 0;
    for (const auto* classes : {&contexts.row, &contexts.column})
        for (const std::uint8_t c : *classes) {
            steps.push_back(std::uint8_t(c - last));
            last = c;
        }
    return steps;
}

Choice choose(const Contexts& full, std::span<const Counts> counts) {
    Contexts no_classes = full;
    no_classes.classes = 1;
    no_classes.row.clear();
    no_classes.column.clear();
    Contexts no_side = full, plain = no_classes;
    no_side.side = plain.side = Side::none;

    Vector<Counts> by_class(full.classes), by_side(full.sides()), all(1);
    for (std::size_t i = 0; i < counts.size(); ++i) add(by_side[i / full.classes], counts[i], {});
    for (const Counts& of_side : by_side) add(all[0], of_side, {});
    Occurring symbols;
    while (symbols.first < symbols.last && all[0][symbols.first] == 0) ++symbols.first;
    while (symbols.last > symbols.first && all[0][symbols.last] == 0) --symbols.last;
    for (std::size_t i = 0; i < counts.size(); ++i)
        add(by_class[i % full.classes], counts[i], symbols);
    Choice best = evaluate(full, counts, symbols);
    const auto consider = [&](const Contexts& contexts, std::span<const Counts> counted) {
        if (Choice other = evaluate(contexts, counted, symbols); other.bits <= best.bits)
            best = std::move(other);
    };
    if (full.side != Side::none && full.classes > 1) consider(no_classes, by_side);
    // Tokens are what is left of a prediction: they make no sense without it.
    if (full.side == Side::neighbours) consider(no_side, by_class);
    if (full.side == Side::neighbours || (full.side == Side::none && full.classes > 1))
        consider(plain, all);
    return best;
}

unsigned probability_bits(std::size_t tokens, double bits) {
    if (tokens < 1u << 14 || bits < 2 * double(tokens)) return 10;
    return tokens < 1u << 18 ? 11 : 12;
}

}  // namespace fedsz::uniform

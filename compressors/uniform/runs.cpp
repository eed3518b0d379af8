#include "runs.hpp"

#include <algorithm>

namespace fedsz::uniform {
namespace {

// Symbol `at` of a run and those behind it, from the last to the first.
template <unsigned Lanes>
void encode_one_by_one(std::uint32_t* states, std::uint16_t*& words, const RangeTables& tables,
                       const std::uint8_t* contexts, std::span<const std::uint8_t> symbols,
                       std::size_t at) {
    const Range* ranges = tables.data();
    const unsigned bits = tables.bits();
    std::uint16_t* last = words;
    std::uint32_t own[Lanes];  // which no store to a word can change
    std::copy_n(states, Lanes, own);
    for (std::size_t i = symbols.size(); i-- > 0;) {
        std::uint32_t& state = own[(at + i) % Lanes];
        const Range range = ranges[(contexts ? contexts[i] * kSymbols : 0) + symbols[i]];
        const std::uint32_t frequency = range & 0xFFFF, first = range >> 16;
        // Without a branch: whether a state runs high is close to random.
        const std::uint32_t high = state >= frequency << (31 - bits);
        last[-1] = std::uint16_t(state);
        last -= high;
        const std::uint32_t s = state >> (16 * high);
        state = ((s / frequency) << bits) + s % frequency + first;
    }
    std::copy_n(own, Lanes, states);
    words = last;
}

template <unsigned Lanes>
void decode_one_by_one(std::uint32_t* states, unsigned& lane, const std::uint8_t*& words,
                       const std::uint8_t* end, const SlotTables& tables,
                       const std::uint8_t* contexts, std::span<std::uint8_t> symbols) {
    const Slot* slots = tables.data();
    const unsigned bits = tables.bits();
    const std::uint8_t* next = words;
    std::uint32_t own[Lanes];
    std::copy_n(states, Lanes, own);
    for (std::size_t i = 0; i < symbols.size(); ++i) {
        std::uint32_t state = own[(lane + i) % Lanes];
        const std::size_t table = contexts ? std::size_t(contexts[i]) << bits : 0;
        const Slot slot = slots[table + (state & ((1u << bits) - 1))];
        symbols[i] = std::uint8_t(slot);
        state = (slot >> 20) * (state >> bits) + (slot >> 8 & 0xFFF);
        // Without a branch, but at the end: whether a state runs low is close to random.
        const std::uint32_t low = state < kStateLow;
        std::uint16_t word = 0;
        if (next != end)
            std::memcpy(&word, next, 2);
        else if (low)
            throw CorruptPayload("a run of symbols ends too early");
        own[(lane + i) % Lanes] = state << (16 * low) | (word & (0 - low));
        next += 2 * low;
    }
    std::copy_n(own, Lanes, states);
    lane = unsigned((lane + symbols.size()) % Lanes);
    words = next;
}

}  // namespace

RangeTables::RangeTables(std::span<const Frequencies> tables, unsigned bits)
    : ranges_(tables.size() * kSymbols), bits_(bits) {
    for (std::size_t i = 0; i < tables.size(); ++i)
        lay_out(tables[i], std::span<Range, kSymbols>(&ranges_[i * kSymbols], kSymbols));
}

SlotTables::SlotTables(std::span<const Frequencies> tables, unsigned bits)
    : slots_(sizeof(Slot) * tables.size() << bits), count_(tables.size()), bits_(bits) {
    const std::span slots(reinterpret_cast<Slot*>(slots_.get()), tables.size() << bits);
    for (std::size_t i = 0; i < tables.size(); ++i)
        lay_out(tables[i], slots.subspan(i << bits, std::size_t(1) << bits));
}

RunEncoder::RunEncoder(const Kernels& kernels, std::size_t capacity)
    // A symbol takes 12 bits at most, a word 16; kernels write whole registers.
    : kernels_(kernels),
      buffer_(sizeof(std::uint16_t) * (capacity + 2 * kLanes)),
      end_(reinterpret_cast<std::uint16_t*>(buffer_.get()) + capacity + 2 * kLanes) {}

void RunEncoder::start(unsigned lanes) {
    lanes_ = lanes;
    words_ = end_;
    std::ranges::fill(states_, kStateLow);
}

void RunEncoder::encode(const RangeTables& tables, const std::uint8_t* contexts,
                        std::span<const std::uint8_t> symbols, std::size_t at) {
    std::size_t i = symbols.size();
    const auto down_to = [&](std::size_t stop) {
        const auto some = symbols.subspan(stop, i - stop);
        const std::uint8_t* those = contexts ? contexts + stop : nullptr;
        if (lanes_ == kLanes)
            encode_one_by_one<kLanes>(states_, words_, tables, those, some, at + stop);
        else
            encode_one_by_one<kFewLanes>(states_, words_, tables, those, some, at + stop);
        i = stop;
    };
    if (lanes_ == kLanes) {
        down_to(i - std::min(i, (at + i) % kLanes));
        const std::size_t groups = i / kLanes;
        i -= groups * kLanes;
        kernels_.encode(states_, words_, tables.data(), tables.bits(),
                        contexts ? contexts + i : nullptr, symbols.data() + i, groups);
    }
    down_to(0);
}

std::size_t RunEncoder::size() const {
    return 4 * lanes_ + 2 * std::size_t(end_ - words_);
}

void RunEncoder::write(std::span<std::uint8_t> bytes) const {
    std::memcpy(bytes.data(), states_, 4 * lanes_);
    std::memcpy(bytes.data() + 4 * lanes_, words_, bytes.size() - 4 * lanes_);
}

RunDecoder::RunDecoder(const Kernels& kernels, unsigned lanes, Bytes bytes)
    : kernels_(kernels), lanes_(lanes) {
    if (bytes.size() < 4 * lanes || bytes.size() % 2 != 0)
        throw CorruptPayload("a run of symbols has no room for its states");
    std::memcpy(states_, bytes.data(), 4 * lanes);
    // From states in range, no later one can leave it.
    for (unsigned lane = 0; lane < lanes; ++lane)
        if (states_[lane] < kStateLow || states_[lane] >> 31)
            throw CorruptPayload("a state is out of range");
    words_ = bytes.data() + 4 * lanes;
    end_ = bytes.data() + bytes.size();
}

void RunDecoder::decode(const SlotTables& tables, const std::uint8_t* contexts,
                        std::span<std::uint8_t> symbols) {
    Turn turn{this, contexts, symbols, {}};
    decode(tables, std::span(&turn, 1));
}

void RunDecoder::one_by_one(const SlotTables& tables, Turn& turn, std::size_t count) {
    RunDecoder& run = *turn.run;
    const auto some = turn.symbols.first(count);
    if (run.lanes_ == kLanes)
        decode_one_by_one<kLanes>(run.states_, run.lane_, run.words_, run.end_, tables,
                                  turn.contexts, some);
    else
        decode_one_by_one<kFewLanes>(run.states_, run.lane_, run.words_, run.end_, tables,
                                     turn.contexts, some);
    turn.symbols = turn.symbols.subspan(count);
    if (turn.contexts) turn.contexts += count;
    turn.ahead.advance(count);
}

void RunDecoder::in_groups(const SlotTables& tables, std::span<Turn> turns) {
    const RunDecoder& first = *turns[0].run;
    if (first.lanes_ != kLanes) return;
    for (;;) {
        RunState states[kSideBySide];
        std::size_t groups = SIZE_MAX;
        for (std::size_t i = 0; i < turns.size(); ++i) {
            const auto& [run, contexts, symbols, ahead] = turns[i];
            if (run->lane_ != 0) return;
            states[i] = {run->states_, run->words_, run->end_, contexts, symbols.data(), ahead};
            groups = std::min({groups, symbols.size() / kLanes, states[i].safe_groups()});
        }
        if (groups == 0) return;
        first.kernels_.decode(states, unsigned(turns.size()), tables.data(), tables.bits(), groups);
        for (std::size_t i = 0; i < turns.size(); ++i) {
            turns[i].run->words_ = states[i].words;
            turns[i].contexts = states[i].contexts;
            turns[i].ahead = states[i].ahead;
            turns[i].symbols = turns[i].symbols.subspan(groups * kLanes);
        }
    }
}

void RunDecoder::decode(const SlotTables& tables, std::span<Turn> turns) {
    for (Turn& turn : turns)
        if (turn.run->lane_ != 0)
            one_by_one(tables, turn,
                       std::min<std::size_t>(turn.symbols.size(),
                                             turn.run->lanes_ - turn.run->lane_));
    // A last chunk is shorter, and may have ended.
    while (!turns.empty() && turns.back().symbols.empty()) turns = turns.first(turns.size() - 1);
    if (!turns.empty()) in_groups(tables, turns);
    for (Turn& turn : turns) {
        in_groups(tables, std::span(&turn, 1));  // the others may have ended earlier
        one_by_one(tables, turn, turn.symbols.size());
    }
}

void RunDecoder::finish() const {
    const bool ended =
        std::all_of(states_, states_ + lanes_, [](auto s) { return s == kStateLow; });
    if (!ended || words_ != end_)
        throw CorruptPayload("a run of symbols does not end where it should");
}

}  // namespace fedsz::uniform

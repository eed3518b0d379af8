// Runs of symbols: the interleaved rANS states around the kernels' inner loops.
#pragma once

#include <cstdint>
#include <span>

#include "bytes.hpp"
#include "kernels.hpp"
#include "memory.hpp"
#include "recycled.hpp"
#include "tables.hpp"

namespace fedsz::uniform {

// Runs of few symbols use fewer states, whose storage would cost more than it is worth.
inline constexpr unsigned kFewLanes = 4;

// The tables of a run, laid out for either direction.
class RangeTables {
public:
    RangeTables(std::span<const Frequencies> tables, unsigned bits);
    const Range* data() const { return ranges_.data(); }
    unsigned bits() const { return bits_; }
    std::size_t count() const { return ranges_.size() / kSymbols; }

private:
    Vector<Range> ranges_;
    unsigned bits_;
};

class SlotTables {
public:
    SlotTables(std::span<const Frequencies> tables, unsigned bits);
    const Slot* data() const { return reinterpret_cast<const Slot*>(slots_.get()); }
    unsigned bits() const { return bits_; }
    std::size_t count() const { return count_; }

private:
    RecycledBytes slots_;
    std::size_t count_;
    unsigned bits_;
};

// Encodes a run from its last symbol to its first.
class RunEncoder {
public:
    // capacity: the most symbols a run will have.
    RunEncoder(const Kernels& kernels, std::size_t capacity);

    void start(unsigned lanes);

    // Symbols at, at + 1, ... of the run; what follows them has been encoded before.
    void encode(const RangeTables& tables, const std::uint8_t* contexts,
                std::span<const std::uint8_t> symbols, std::size_t at);

    // Size and bytes of what has been encoded: the states, then the words.
    std::size_t size() const;
    void write(std::span<std::uint8_t> bytes) const;

private:
    const Kernels& kernels_;
    RecycledBytes buffer_;
    std::uint16_t* end_;  // of the buffer
    std::uint16_t* words_ = nullptr;
    unsigned lanes_ = 0;
    std::uint32_t states_[kLanes];
};

// Decodes a run from its first symbol to its last.
class RunDecoder {
public:
    RunDecoder(const Kernels& kernels, unsigned lanes, Bytes bytes);

    // The next symbols; contexts may be null, and is below tables.count() else.
    void decode(const SlotTables& tables, const std::uint8_t* contexts,
                std::span<std::uint8_t> symbols);

    // What to decode next of a run.
    struct Turn {
        RunDecoder* run;
        const std::uint8_t* contexts;
        std::span<std::uint8_t> symbols;
        Ahead ahead = {};
    };
    // As each by itself, but at the same time; contexts of all or of none are null. At most
    // kSideBySide.
    static void decode(const SlotTables& tables, std::span<Turn> turns);

    // Throws unless the run ends as its encoder began it.
    void finish() const;

private:
    // As far as vectors go: kSideBySide turns at most, until one of them has not all the words that
    // a group can take, or too few symbols.
    static void in_groups(const SlotTables& tables, std::span<Turn> turns);

    // The next `count` symbols of a turn.
    static void one_by_one(const SlotTables& tables, Turn& turn, std::size_t count);

    const Kernels& kernels_;
    unsigned lanes_, lane_ = 0;
    std::uint32_t states_[kLanes];
    const std::uint8_t *words_, *end_;  // of 16 bits each, at any address
};

}  // namespace fedsz::uniform

// A chunk of tokens: as bit planes, or by rANS under a model.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <span>

#include "contexts.hpp"
#include "memory.hpp"
#include "model.hpp"
#include "runs.hpp"

namespace fedsz::uniform {

// Chunks are coded one by one, so that they can be on different threads.
struct Chunks {
    std::size_t n, size;
    std::size_t count() const { return (n + size - 1) / size; }
    std::size_t begin(std::size_t i) const { return i * size; }
    std::size_t length(std::size_t i) const { return std::min(size, n - i * size); }
};

inline constexpr unsigned kMinChunk = 12, kMaxChunk = 24;  // log2 of a chunk's elements

// Of 2^log elements; where these are coded by plane, whole kernels, a multiple of kPlane of them.
Chunks chunks_of(std::size_t n, const Contexts& contexts, unsigned log);

// log2 of the symbols in a chunk, of so many that take so many bits: it should be large beside what
// its states take, and small beside a thread's share. Says how many states it should have, too.
unsigned chunk_log(double bits, std::size_t symbols, Model& model);

// The blocks mode: for each kPlane tokens the least of them (a byte) and the bits that the others
// are above it (a byte); then, block by block, those bits in planes. Tokens behind the last are
// zero.
std::size_t blocks_capacity(std::size_t n);
std::size_t encode_blocks(const Kernels& kernels, std::span<const std::uint8_t> tokens,
                          std::uint8_t* out);

class BlocksDecoder {
public:
    // n tokens of one chunk; throws CorruptPayload unless the bytes are just as many as they need.
    BlocksDecoder(const Kernels& kernels, Bytes bytes, std::size_t n);

    // The next tokens, of which only the last may be no multiple of kPlane.
    void decode(std::span<std::uint8_t> tokens);

private:
    const Kernels& kernels_;
    Bytes heads_, planes_;
};

// The coded mode. A coder works for one thread, on one chunk at a time.
class TokenEncoder {
public:
    // capacity: the most symbols of a chunk.
    TokenEncoder(const Kernels& kernels, const Model& model, const RangeTables& tables,
                 const ContextMap& map, std::size_t capacity);

    // Encodes a chunk, whose first element has the number `begin`, and behind it `others`, which all
    // have the last table.
    const RunEncoder& encode(std::size_t begin, std::span<const std::uint8_t> tokens,
                             std::span<const std::uint8_t> others = {});

private:
    const Kernels& kernels_;
    const Model& model_;
    const RangeTables& tables_;
    const ContextMap& map_;
    RunEncoder run_;
    Vector<std::uint8_t> contexts_, planes_;
};

class TokenDecoder {
public:
    // chunk: the most tokens of one, for which it takes all its memory at once.
    TokenDecoder(const Kernels& kernels, const Model& model, const SlotTables& tables,
                 const ContextMap& map, std::size_t chunk);

    // Begins a chunk of n tokens.
    void start(Bytes bytes, std::size_t begin, std::size_t n);

    // What to decode next of a chunk: at most kBlock tokens, or none; fractions: those of the
    // prediction, if there is one.
    struct Turn {
        TokenDecoder* coder;
        const std::uint8_t* fractions;
        std::span<std::uint8_t> tokens;
        Ahead ahead = {};
    };
    // At most kSideBySide of them; of chunks that have been started, of one tensor.
    static void decode(std::span<const Turn> turns);

    // What follows the tokens of a chunk, all of it by the last table.
    void decode_others(std::span<std::uint8_t> others);

    void finish() const { run_->finish(); }

private:
    using RunTurns = std::array<RunDecoder::Turn, kSideBySide>;

    // All tokens of chunks that are coded by plane.
    static void decode_planes(std::span<const Turn> turns);

    const Kernels& kernels_;
    const Model& model_;
    const SlotTables& tables_;
    const ContextMap& map_;
    std::optional<RunDecoder> run_;
    std::size_t at_ = 0, n_ = 0, begin_ = 0;
    Vector<std::uint8_t> contexts_, planes_, ordered_;
};

// How many tables of counts there should be for n tokens: one for each context, or several.
std::size_t counts_of(const Contexts& contexts, std::size_t n);

// Counts the tokens of a chunk in the contexts that `map` knows. Table c is one of context
// c % contexts.count(): those of a context are to be added up.
void count_tokens(const Kernels& kernels, const Contexts& contexts, const Factors* factors,
                  const ContextMap& map, std::size_t begin, std::span<const std::uint8_t> tokens,
                  std::span<Counts> counts);

// What several have counted, for each of so many contexts.
Vector<Counts> total(const Vector<Vector<Counts>>& counted, std::size_t contexts);

}  // namespace fedsz::uniform

// Chunks of tokens that are nearly all the same: how many of these lie between two others, and what
// those are, by the adaptive binary coder.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <optional>

#include "analysis.hpp"
#include "binary.hpp"
#include "bytes.hpp"
#include "memory.hpp"
#include "tokens.hpp"

namespace fedsz::uniform {

// What a chunk's numbers are expected to be, learnt from those before.
class SparseModel {
public:
    // The model of the next gap: by how wide gaps have lately been.
    auto& gap() { return gap_[std::min(unsigned(std::bit_width(lately_ >> 3)), kDensities - 1)]; }
    void learn_gap(unsigned gap) { lately_ += 2 * gap - (lately_ >> 3); }

    Bit& negative() { return negative_[last_]; }
    Number& magnitude() { return magnitude_[last_]; }
    void learn_sign(bool negative) { last_ = negative; }

private:
    static constexpr unsigned kDensities = 12;
    std::array<NumberModel<kMaxChunk + 1, 3>, kDensities> gap_;
    std::uint32_t lately_ = 256;  // 16 times a moving average
    Bit negative_[2];
    Number magnitude_[2];
    bool last_ = false;  // whether the token before was below `usual`
};

struct Sparse {
    std::uint8_t usual;
    Vector<Vector<std::uint8_t>> chunks;  // of 2^kSparseChunk tokens
};

inline constexpr unsigned kSparseChunk = 20;

// The tokens, if nearly all are the same and they take fewer bits than by `choice`.
std::optional<Sparse> encode_sparse(std::span<const std::uint8_t> tokens, const Choice& choice,
                                    unsigned threads);

// The usual token, the chunks' size, and the chunks.
void write(const Sparse& sparse, Writer& writer);

class SparseDecoder {
public:
    // A chunk of n > 0 tokens.
    SparseDecoder(Bytes bytes, std::size_t n, std::uint8_t usual);

    // The next tokens; throws CorruptPayload where the chunk does not end as an encoder's would.
    void decode(std::span<std::uint8_t> tokens);

private:
    void next_gap();

    BinaryDecoder coder_;
    SparseModel model_;
    std::uint8_t usual_;
    std::size_t left_;     // tokens not decoded
    std::size_t gap_ = 0;  // of these, how many are `usual` before the next that is not
};

}  // namespace fedsz::uniform

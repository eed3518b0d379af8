#include "sparse.hpp"

#include <algorithm>
#include <cstdlib>

#include "parallel.hpp"

namespace fedsz::uniform {
namespace {

constexpr std::size_t kFewOthers = 8;  // at most one in so many tokens is not the usual one
constexpr std::size_t kTrial = 1000;

// How many tokens are `usual` before one is not.
std::size_t run_of(std::uint8_t usual, std::span<const std::uint8_t> tokens) {
    constexpr std::size_t step = 64;
    std::size_t n = 0;
    for (; n + step <= tokens.size(); n += step) {
        unsigned different = 0;
        for (std::size_t i = 0; i < step; ++i) different |= unsigned(tokens[n + i] ^ usual);
        if (different) break;
    }
    while (n < tokens.size() && tokens[n] == usual) ++n;
    return n;
}

Vector<std::uint8_t> encode_chunk(std::span<const std::uint8_t> tokens, std::uint8_t usual) {
    BinaryEncoder coder;
    SparseModel model;
    const auto put_gap = [&](std::size_t gap) {
        model.gap().put(coder, unsigned(gap));
        model.learn_gap(unsigned(gap));
    };
    for (auto rest = tokens; !rest.empty();) {
        const std::size_t gap = run_of(usual, rest);
        put_gap(gap);
        if (gap == rest.size()) break;
        const int above = rest[gap] - usual;
        coder.put(model.negative(), above < 0);
        model.magnitude().put(coder, unsigned(std::abs(above)) - 1);
        model.learn_sign(above < 0);
        rest = rest.subspan(gap + 1);
    }
    return coder.finish();
}

}  // namespace

std::optional<Sparse> encode_sparse(std::span<const std::uint8_t> tokens, const Choice& choice,
                                    unsigned threads) {
    Counts counts{};
    for (const Counts& some : choice.counts)
        for (unsigned s = 0; s < kSymbols; ++s) counts[s] += some[s];
    const auto most = std::ranges::max_element(counts);
    const auto usual = std::uint8_t(most - counts.begin());
    const std::size_t n = tokens.size(), others = n - *most;
    if (others > n / kFewOthers) return {};
    if (others > kTrial) {
        // The first of them tell whether all are worth the time.
        const auto some = tokens.first(n / others * kTrial);
        const auto trial = std::size_t(some.size() - std::ranges::count(some, usual));
        const double bits = 8 * double(encode_chunk(some, usual).size());
        if (bits * double(others) > choice.bits * double(trial)) return {};
    }
    const Chunks chunks{n, std::size_t(1) << kSparseChunk};
    Sparse sparse{usual, {}};
    sparse.chunks.resize(chunks.count());
    parallel_for(chunks.count(), threads, [&](unsigned, std::size_t i) {
        sparse.chunks[i] = encode_chunk(tokens.subspan(chunks.begin(i), chunks.length(i)), usual);
    });
    std::size_t size = 0;
    for (const auto& chunk : sparse.chunks) size += 4 + chunk.size();
    if (8 * double(size) >= choice.bits) return {};
    return sparse;
}

void write(const Sparse& sparse, Writer& writer) {
    writer.put(sparse.usual);
    writer.put(std::uint8_t(kSparseChunk));
    for (const auto& chunk : sparse.chunks) writer.put(std::uint32_t(chunk.size()));
    for (const auto& chunk : sparse.chunks) writer.put(chunk.data(), chunk.size());
}

SparseDecoder::SparseDecoder(Bytes bytes, std::size_t n, std::uint8_t usual)
    : coder_(bytes), usual_(usual), left_(n) {
    next_gap();
}

void SparseDecoder::next_gap() {
    gap_ = 0;
    if (left_ > 0) {
        const unsigned gap = model_.gap().get(coder_);
        model_.learn_gap(gap);
        gap_ = gap;
    }
    if (gap_ > left_) throw CorruptPayload("a gap goes beyond its chunk");
    if (gap_ == left_ && !coder_.finished())
        throw CorruptPayload("a chunk does not end with its tokens");
}

void SparseDecoder::decode(std::span<std::uint8_t> tokens) {
    std::ranges::fill(tokens, usual_);
    for (auto rest = tokens; !rest.empty();) {
        const std::size_t some = std::min(gap_, rest.size());
        rest = rest.subspan(some);
        gap_ -= some;
        left_ -= some;
        if (rest.empty()) break;
        const bool negative = coder_.get(model_.negative());
        const int size = int(model_.magnitude().get(coder_)) + 1;
        model_.learn_sign(negative);
        const int token = negative ? usual_ - size : usual_ + size;
        if (token < 0 || token > 255) throw CorruptPayload("a token out of range");
        rest[0] = std::uint8_t(token);
        rest = rest.subspan(1);
        --left_;
        next_gap();
    }
}

}  // namespace fedsz::uniform

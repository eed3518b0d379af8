#include "tokens.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

namespace fedsz::uniform {
namespace {

// Contexts of at most kBlock elements in the order of the tensor.
void fill_contexts(const Kernels& kernels, const Factors* factors, const ContextMap& map,
                   std::size_t at, std::span<std::uint8_t> out) {
    std::int32_t numbers[kBlock];
    std::uint8_t fractions[kBlock];
    if (factors) factors->predict(kernels, at, std::span(numbers).first(out.size()), fractions);
    map.fill(at, fractions, out);
}

}  // namespace

Chunks chunks_of(std::size_t n, const Contexts& contexts, unsigned log) {
    const std::size_t size = std::size_t(1) << log;
    if (!contexts.by_plane()) return {n, size};
    const std::size_t unit = kPlane * contexts.geometry.planes;
    return {n, std::max<std::size_t>(size / unit, 1) * unit};
}

unsigned chunk_log(double bits, std::size_t symbols, Model& model) {
    constexpr double kilobyte = 1024 * 8;
    const double enough = std::clamp(bits / 32, 16 * kilobyte, 256 * kilobyte);
    unsigned log = model.quads ? 14 : 16;
    while (log < 22 && std::ldexp(bits / double(symbols), int(log)) < enough) ++log;
    const double of_chunk = std::min(bits, std::ldexp(bits / double(symbols), int(log)));
    model.lanes = of_chunk < 8 * kilobyte ? kFewLanes : kLanes;
    return log;
}

std::size_t blocks_capacity(std::size_t n) { return (n + kPlane - 1) / kPlane * (2 + kPlane); }

std::size_t encode_blocks(const Kernels& kernels, std::span<const std::uint8_t> tokens,
                          std::uint8_t* out) {
    const std::size_t blocks = (tokens.size() + kPlane - 1) / kPlane;
    std::uint8_t* planes = out + 2 * blocks;
    for (std::size_t block = 0; block < blocks; ++block) {
        const auto some =
            tokens.subspan(block * kPlane, std::min(kPlane, tokens.size() - block * kPlane));
        std::uint8_t above[kPlane]{};
        std::uint8_t low = 255, high = 0;
        for (const std::uint8_t token : some) {
            low = std::min(low, token);
            high = std::max(high, token);
        }
        for (std::size_t i = 0; i < some.size(); ++i) above[i] = std::uint8_t(some[i] - low);
        const auto width = unsigned(std::bit_width(unsigned(high - low)));
        kernels.pack(above, width, planes);
        planes += kPlane / 8 * width;
        out[2 * block] = low;
        out[2 * block + 1] = std::uint8_t(width);
    }
    return std::size_t(planes - out);
}

BlocksDecoder::BlocksDecoder(const Kernels& kernels, Bytes bytes, std::size_t n)
    : kernels_(kernels) {
    const std::size_t blocks = (n + kPlane - 1) / kPlane;
    if (bytes.size() < 2 * blocks) throw CorruptPayload("a chunk has no room for its blocks");
    heads_ = bytes.first(2 * blocks);
    planes_ = bytes.subspan(2 * blocks);
    std::size_t needed = 0;
    for (std::size_t block = 0; block < blocks; ++block) {
        if (heads_[2 * block + 1] > 8) throw CorruptPayload("a block is wider than a token");
        needed += kPlane / 8 * heads_[2 * block + 1];
    }
    if (needed != planes_.size()) throw CorruptPayload("blocks do not fill their chunk");
}

void BlocksDecoder::decode(std::span<std::uint8_t> tokens) {
    for (std::size_t at = 0; at < tokens.size(); at += kPlane) {
        const std::uint8_t low = heads_[0];
        const unsigned width = heads_[1];
        // Once more: another thread may have written to the payload since the widths were added up.
        if (width > 8 || kPlane / 8 * width > planes_.size())
            throw CorruptPayload("a block changed while its chunk was decoded");
        heads_ = heads_.subspan(2);
        std::uint8_t above[kPlane];
        kernels_.unpack(planes_.data(), width, above);
        planes_ = planes_.subspan(kPlane / 8 * width);
        const std::size_t n = std::min(kPlane, tokens.size() - at);
        for (std::size_t i = 0; i < n; ++i) tokens[at + i] = std::uint8_t(above[i] + low);
    }
}

TokenEncoder::TokenEncoder(const Kernels& kernels, const Model& model, const RangeTables& tables,
                           const ContextMap& map, std::size_t capacity)
    : kernels_(kernels),
      model_(model),
      tables_(tables),
      map_(map),
      run_(kernels, capacity),
      contexts_(kBlock) {}

const RunEncoder& TokenEncoder::encode(std::size_t begin, std::span<const std::uint8_t> tokens,
                                       std::span<const std::uint8_t> others) {
    run_.start(model_.lanes);
    if (!others.empty()) {
        std::ranges::fill(contexts_, std::uint8_t(tables_.count() - 1));
        for (std::size_t end = others.size(); end > 0;) {
            const std::size_t at = (end - 1) / kBlock * kBlock;
            run_.encode(tables_, contexts_.data(), others.subspan(at, end - at),
                        tokens.size() + at);
            end = at;
        }
    }
    if (!model_.contexts.by_plane()) {
        const Factors* factors = model_.factors ? &*model_.factors : nullptr;
        for (std::size_t end = tokens.size(); end > 0;) {
            const std::size_t at = (end - 1) / kBlock * kBlock, n = end - at;
            if (!map_.trivial())
                fill_contexts(kernels_, factors, map_, begin + at, std::span(contexts_).first(n));
            run_.encode(tables_, map_.trivial() ? nullptr : contexts_.data(), tokens.subspan(at, n),
                        at);
            end = at;
        }
        return run_;
    }
    const unsigned planes = model_.contexts.geometry.planes;
    const std::size_t kernels = tokens.size() / planes;
    planes_.resize(tokens.size());
    to_planes(tokens.data(), kernels, planes, planes_.data());
    for (unsigned plane = planes; plane-- > 0;) {
        for (std::size_t end = kernels; end > 0;) {
            const std::size_t at = (end - 1) / kBlock * kBlock, n = end - at;
            map_.fill_plane(plane, begin / planes + at, planes_.data() + at, kernels,
                            std::span(contexts_).first(n));
            const std::size_t where = plane * kernels + at;
            run_.encode(tables_, contexts_.data(), std::span(planes_).subspan(where, n), where);
            end = at;
        }
    }
    return run_;
}

TokenDecoder::TokenDecoder(const Kernels& kernels, const Model& model, const SlotTables& tables,
                           const ContextMap& map, std::size_t chunk)
    : kernels_(kernels), model_(model), tables_(tables), map_(map), contexts_(kBlock) {
    if (!model.contexts.by_plane()) return;
    planes_.reserve(chunk);
    ordered_.reserve(chunk);
}

void TokenDecoder::start(Bytes bytes, std::size_t begin, std::size_t n) {
    run_.emplace(kernels_, model_.lanes, bytes);
    begin_ = begin;
    at_ = 0;
    n_ = n;
}

void TokenDecoder::decode(std::span<const Turn> turns) {
    const TokenDecoder& any = *turns[0].coder;
    if (any.model_.contexts.by_plane()) {
        if (any.at_ == 0) decode_planes(turns);
        for (const auto& [coder, fractions, tokens, ahead] : turns) {
            if (!tokens.empty()) std::memcpy(tokens.data(), &coder->ordered_[coder->at_], tokens.size());
            coder->at_ += tokens.size();
        }
        return;
    }
    RunTurns runs;
    for (std::size_t i = 0; i < turns.size(); ++i) {
        const auto& [coder, fractions, tokens, ahead] = turns[i];
        std::uint8_t* contexts = any.map_.trivial() ? nullptr : coder->contexts_.data();
        if (contexts)
            any.map_.fill(coder->begin_ + coder->at_, fractions,
                          std::span(contexts, tokens.size()));
        runs[i] = {&*coder->run_, contexts, tokens, ahead};
        coder->at_ += tokens.size();
    }
    RunDecoder::decode(any.tables_, std::span(runs).first(turns.size()));
}

void TokenDecoder::decode_others(std::span<std::uint8_t> others) {
    std::ranges::fill(contexts_, std::uint8_t(tables_.count() - 1));
    for (std::size_t at = 0; at < others.size(); at += kBlock)
        run_->decode(tables_, contexts_.data(),
                     others.subspan(at, std::min(kBlock, others.size() - at)));
}

void TokenDecoder::decode_planes(std::span<const Turn> turns) {
    const TokenDecoder& any = *turns[0].coder;
    const unsigned planes = any.model_.contexts.geometry.planes;
    std::size_t most = 0;
    for (const Turn& turn : turns) {
        TokenDecoder& coder = *turn.coder;
        coder.planes_.resize(coder.n_);
        coder.ordered_.resize(coder.n_);
        most = std::max(most, coder.n_ / planes);
    }
    for (unsigned plane = 0; plane < planes; ++plane) {
        for (std::size_t at = 0; at < most; at += kBlock) {
            RunTurns runs;
            for (std::size_t i = 0; i < turns.size(); ++i) {
                TokenDecoder& coder = *turns[i].coder;
                const std::size_t kernels = coder.n_ / planes;
                const std::size_t n = std::min(kBlock, kernels - std::min(at, kernels));
                const auto contexts = std::span(coder.contexts_).first(n);
                if (n > 0)
                    any.map_.fill_plane(plane, coder.begin_ / planes + at, &coder.planes_[at],
                                        kernels, contexts);
                runs[i] = {&*coder.run_, contexts.data(),
                           std::span(coder.planes_).subspan(plane * kernels + (n ? at : 0), n),
                           {}};
            }
            RunDecoder::decode(any.tables_, std::span(runs).first(turns.size()));
        }
    }
    for (const Turn& turn : turns)
        from_planes(turn.coder->planes_.data(), turn.coder->n_ / planes, planes,
                    turn.coder->ordered_.data());
}

namespace {

constexpr std::size_t kTurns = 4;
constexpr std::size_t kManyTokens = 16;  // for each count

// Counts tokens in Turns sets of tables by turns: a count that was just added to is not ready to be
// added to again, and in a context most tokens are alike.
template <std::size_t Turns>
void count_in_turn(const std::uint8_t* context, std::span<const std::uint8_t> tokens,
                   std::span<Counts> counts) {
    std::uint16_t both[kBlock];  // a context and its token: the place of a count in a set
    for (std::size_t i = 0; i < tokens.size(); ++i)
        both[i] = std::uint16_t(context[i] << 8 | tokens[i]);
    std::uint32_t* sets[Turns];
    for (std::size_t turn = 0; turn < Turns; ++turn)
        sets[turn] = counts[turn * (counts.size() / Turns)].data();
    std::size_t i = 0;
    for (; i + Turns <= tokens.size(); i += Turns)
#pragma GCC unroll 4
        for (std::size_t turn = 0; turn < Turns; ++turn) ++sets[turn][both[i + turn]];
    for (; i < tokens.size(); ++i) ++sets[0][both[i]];
}

}  // namespace

std::size_t counts_of(const Contexts& contexts, std::size_t n) {
    const std::size_t count = contexts.count();
    return n / (count * kSymbols) < kManyTokens ? count : kTurns * count;
}

void count_tokens(const Kernels& kernels, const Contexts& contexts, const Factors* factors,
                  const ContextMap& map, std::size_t begin, std::span<const std::uint8_t> tokens,
                  std::span<Counts> counts) {
    std::uint8_t context[kBlock];
    const auto count = [&](std::span<const std::uint8_t> some) {
        const auto in_turn = counts.size() == contexts.count() ? count_in_turn<1> : count_in_turn<kTurns>;
        in_turn(context, some, counts);
    };
    if (!contexts.by_plane()) {
        for (std::size_t at = 0; at < tokens.size(); at += kBlock) {
            const auto some = tokens.subspan(at, std::min(kBlock, tokens.size() - at));
            fill_contexts(kernels, factors, map, begin + at, std::span(context).first(some.size()));
            count(some);
        }
        return;
    }
    const unsigned planes = contexts.geometry.planes;
    const std::size_t number = tokens.size() / planes;
    Vector<std::uint8_t> by_plane(tokens.size());
    to_planes(tokens.data(), number, planes, by_plane.data());
    for (unsigned plane = 0; plane < planes; ++plane) {
        for (std::size_t at = 0; at < number; at += kBlock) {
            const std::size_t n = std::min(kBlock, number - at);
            map.fill_plane(plane, begin / planes + at, by_plane.data() + at, number,
                           std::span(context).first(n));
            count(std::span(by_plane).subspan(plane * number + at, n));
        }
    }
}

Vector<Counts> total(const Vector<Vector<Counts>>& counted, std::size_t contexts) {
    Vector<Counts> counts(contexts);
    for (const auto& some : counted)
        for (std::size_t c = 0; c < some.size(); ++c)
            for (unsigned s = 0; s < kSymbols; ++s) counts[c % contexts][s] += some[c][s];
    return counts;
}

}  // namespace fedsz::uniform

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <numeric>
#include <optional>
#include <type_traits>
#include <utility>

#include "decoded_quads.hpp"
#include "low_bits.hpp"
#include "model.hpp"
#include "parallel.hpp"
#include "payload.hpp"
#include "recycled.hpp"
#include "sparse.hpp"
#include "tokens.hpp"

namespace fedsz::uniform {
namespace {

// A payload, read as far as its tokens.
template <class E>
class Decoder final : public Opened {
    using T = typename E::Stored;
    using C = typename E::Compute;

public:
    Decoder(Bytes payload, std::size_t n, const Settings& settings)
        : kernels_(kernels_of(settings)),
          loops_(kernels_.of<E>()),
          threads_(settings.threads),
          n_(n) {
        Reader reader(payload);
        const auto head = reader.get<std::uint8_t>();
        if (head >> 4 != unsigned(E::dtype)) throw CorruptPayload("payload of another dtype");
        mode_ = Mode(head & 0xF);
        if (mode_ == Mode::stored) {
            stored_ = reader.take(reader.left());
            if (stored_.size() / sizeof(T) != n || stored_.size() % sizeof(T) != 0)
                throw CorruptPayload("stored payload of another size");
            chunks_ = {n, kBlock};
            return;
        }
        if (mode_ > Mode::quads) throw CorruptPayload("unknown mode");
        if (n == 0) throw CorruptPayload("codes of no elements");
        read_grid(reader);
        if (mode_ == Mode::constant)
            chunks_ = {n, std::size_t(1) << 16};
        else
            read_chunks(reader);
        read_exceptions(reader);
        if (reader.left() > 0) throw CorruptPayload("bytes behind the end");
    }

    // Fills y, or puts its elements on top of those of a base.
    void decode(T* y, const T* base) {
        if (mode_ == Mode::coded) ahead_ = {y, base};
        const auto put = [&](std::size_t, std::size_t at, std::size_t n, const Block& block) {
            if (base && tokens_alone(at, n))
                return loops_.tokens_onto(block.tokens, n, grid_, base + at, y + at);
            elements(at, n, block, y + at);
            if constexpr (std::is_same_v<T, C>)
                if (base) loops_.accumulate(base + at, n, C(1), y + at);
        };
        if (mode_ == Mode::quads)
            run_quads(put);
        else
            run(nullptr, put);
    }

    // Decodes all there is that may fail, and keeps what `add` needs of it: a byte an element at
    // most. base: what the energy is to be of the distance from, or null.
    void open(const T* base) {
        if (mode_ == Mode::coded) ahead_ = {base, nullptr};
        Vector<double> energies(chunks_.count());
        const double square = double(grid_.step) * double(grid_.step);
        const auto measure = [&](std::size_t chunk, std::size_t at, std::size_t n,
                                 const Block& block) {
            if (!base && tokens_alone(at, n)) {
                energies[chunk] += square * loops_.energy_of_tokens(block.tokens, n, grid_);
            } else {
                T y[kBlock];
                elements(at, n, block, y);
                energies[chunk] += loops_.energy(y, base ? base + at : nullptr, n);
            }
        };
        if (mode_ == Mode::quads && !base && tokens_alone(0, n_)) {
            decode_quads();
            energy_ = square * quads_->template energy<E>(grid_);
            return;
        }
        if (mode_ == Mode::quads) {
            run_quads(measure);
        } else {
            if (mode_ > Mode::constant) tokens_ = RecycledBytes(n_);
            run(tokens_.get(), measure);
        }
        energy_ = std::accumulate(energies.begin(), energies.end(), 0.0);
    }

    double energy() const override { return energy_; }

    void add(double weight, void* sums) const override {
        if (mode_ == Mode::quads) return add_quads(C(weight), static_cast<C*>(sums));
        parallel_for(chunks_.count(), threads_, [&](unsigned, std::size_t i) {
            Block block;
            const std::size_t end = chunks_.begin(i) + chunks_.length(i);
            for (std::size_t at = chunks_.begin(i); at < end; at += kBlock) {
                const std::size_t n = std::min(kBlock, end - at);
                C* sum = static_cast<C*>(sums) + at;
                if (tokens_) block.tokens = tokens_.get() + at;
                if (tokens_alone(at, n)) {
                    loops_.accumulate_tokens(block.tokens, n, grid_, C(weight), sum);
                } else {
                    predict(at, n, block);
                    T y[kBlock];
                    elements(at, n, block, y);
                    loops_.accumulate(y, n, C(weight), sum);
                }
            }
        });
    }

private:
    // What a block of elements is made of.
    struct Block {
        std::uint8_t own[kBlock]{}, fractions[kBlock];
        std::uint8_t* tokens = own;
        std::int32_t numbers[kBlock];
    };

    // A chunk that is being decoded.
    struct Chunk {
        Block block;
        std::optional<BlocksDecoder> blocks;
        std::optional<SparseDecoder> sparse;
        std::unique_ptr<TokenDecoder> coder;
    };

    void read_grid(Reader& reader) {
        grid_.step = reader.get<C>();
        if (!(grid_.step >= 0 && std::isfinite(grid_.step)))
            throw CorruptPayload("step out of range");
        const std::int64_t base = unzigzag(reader.varint());
        if (base < INT32_MIN || base > INT32_MAX) throw CorruptPayload("base out of range");
        grid_.base = std::int32_t(base);
    }

    void read_chunks(Reader& reader) {
        if (mode_ != Mode::quads) {
            grid_.shift = reader.get<std::uint8_t>();
            if (grid_.shift > kMaxShift) throw CorruptPayload("shift out of range");
            low_ = reader.take(low_bytes(n_, grid_.shift));
        }
        if (mode_ >= Mode::sparse) usual_ = reader.get<std::uint8_t>();
        if (mode_ == Mode::quads && (usual_ == 0 || usual_ == 255))
            throw CorruptPayload("a usual token without neighbours");
        const auto log = reader.get<std::uint8_t>();
        if (log < kMinChunk || log > kMaxChunk) throw CorruptPayload("chunk size out of range");
        if (by_runs()) {
            model_ = read_model(reader, kernels_, n_, mode_ == Mode::quads);
            slots_.emplace(model_.frequencies(), model_.bits);
            map_.emplace(model_.of_symbols(), model_.contexts.table);
        }
        chunks_ = chunks_of(model_.quads ? model_.quads->rows.quads() : n_, model_.contexts, log);
        if (chunks_.count() > reader.left() / 4)
            throw CorruptPayload("more chunks than there is room for");
        Reader sizes(reader.take(4 * chunks_.count()));
        parts_.resize(chunks_.count());
        for (Bytes& part : parts_) part = reader.take(sizes.get<std::uint32_t>());
    }

    void read_exceptions(Reader& reader) {
        const std::uint64_t count = reader.varint();
        if (count > n_ || count > reader.left() / (1 + sizeof(T)))
            throw CorruptPayload("more exceptions than there is room for");
        exceptions_.resize(std::size_t(count));
        std::size_t next = 0;
        for (auto& exception : exceptions_) {
            const std::uint64_t gap = reader.varint();
            if (gap >= n_ - next) throw CorruptPayload("an exception lies behind the end");
            exception.position = next + std::size_t(gap);
            next = exception.position + 1;
        }
        for (auto& exception : exceptions_) exception.value = reader.get<T>();
    }

    // Whether chunks are runs of rANS.
    bool by_runs() const { return mode_ == Mode::coded || mode_ == Mode::quads; }

    // Whether elements at, at + 1, ... are multiples of the step that their tokens name, and their
    // squares numbers of the type of the sums.
    bool tokens_alone(std::size_t at, std::size_t n) const {
        if (mode_ == Mode::stored || model_.factors || grid_.shift) return false;
        if (!std::is_same_v<T, C>) return false;
        const C most = (std::abs(C(grid_.base)) + 256) * grid_.step;
        if (!std::isfinite(most * most)) return false;
        const auto next = std::ranges::lower_bound(exceptions_, at, {}, &Exception<E>::position);
        return next == exceptions_.end() || next->position >= at + n;
    }

    void predict(std::size_t at, std::size_t n, Block& block) const {
        if (model_.factors && n > 0)
            model_.factors->predict(kernels_, at, std::span(block.numbers).first(n),
                                    block.fractions);
    }

    // Turns n <= kBlock tokens and predictions into elements.
    void elements(std::size_t at, std::size_t n, const Block& block, T* y) const {
        if (mode_ == Mode::stored) {
            std::memcpy(y, stored_.data() + at * sizeof(T), n * sizeof(T));
            return;
        }
        std::uint16_t low[kBlock];
        if (grid_.shift) unpack_low(kernels_, low_, grid_.shift, at, n, low);
        loops_.dequantise(block.tokens, low, model_.factors ? block.numbers : nullptr, n, grid_, y);
        auto next = std::ranges::lower_bound(exceptions_, at, {}, &Exception<E>::position);
        for (; next != exceptions_.end() && next->position < at + n; ++next)
            y[next->position - at] = next->value;
    }

    // Decodes all tokens, into `keep` if that is given, and calls done(chunk, at, n, block) for each
    // block of them.
    template <class Done>
    void run(std::uint8_t* keep, const Done& done) {
        // As many chunks at a time as leave each thread some.
        const std::size_t most = by_runs() ? kSideBySide : 1;
        const std::size_t step = std::clamp<std::size_t>(chunks_.count() / threads_, 1, most);
        Vector<Vector<Chunk>> of_worker(threads_);
        parallel_for((chunks_.count() + step - 1) / step, threads_,
                     [&](unsigned worker, std::size_t i) {
                         auto& chunks = of_worker[worker];
                         chunks.resize(step);  // once: it is theirs from then on
                         const std::size_t first = i * step;
                         const std::size_t count = std::min(step, chunks_.count() - first);
                         decode_chunks(first, std::span(chunks).first(count), keep, done);
                     });
    }

    // Chunks `first`, `first` + 1, ..., side by side.
    template <class Done>
    void decode_chunks(std::size_t first, std::span<Chunk> chunks, std::uint8_t* keep,
                       const Done& done) {
        for (std::size_t i = 0; i < chunks.size(); ++i) start(first + i, chunks[i]);
        const std::size_t longest = chunks_.length(first);
        for (std::size_t at = 0; at < longest; at += kBlock) {
            std::array<TokenDecoder::Turn, kSideBySide> turns;
            for (std::size_t i = 0; i < chunks.size(); ++i) {
                Chunk& chunk = chunks[i];
                const std::size_t begin = chunks_.begin(first + i) + at;
                const std::size_t length = chunks_.length(first + i);
                const std::size_t n = std::min(kBlock, length - std::min(at, length));
                if (keep && n > 0) chunk.block.tokens = keep + begin;
                const auto some = std::span(chunk.block.tokens, n);
                predict(begin, n, chunk.block);
                if (chunk.blocks)
                    chunk.blocks->decode(some);
                else if (chunk.sparse)
                    chunk.sparse->decode(some);
                turns[i] = {chunk.coder.get(), chunk.block.fractions, some, ahead(begin)};
            }
            if (by_runs()) TokenDecoder::decode(std::span(turns).first(chunks.size()));
            for (std::size_t i = 0; i < chunks.size(); ++i)
                if (const std::size_t n = turns[i].tokens.size(); n > 0)
                    done(first + i, chunks_.begin(first + i) + at, n, chunks[i].block);
        }
        if (!by_runs()) return;
        for (std::size_t i = 0; i < chunks.size(); ++i) {
            if (quads_) chunks[i].coder->decode_others(quads_->others(first + i));
            chunks[i].coder->finish();
        }
    }

    void decode_quads() {
        quads_.emplace(kernels_, model_.quads->rows, chunks_, usual_, threads_);
        run(quads_->quads(), [](auto...) {});
    }

    // Decodes all quads, and calls done as `run` does.
    template <class Done>
    void run_quads(const Done& done) {
        decode_quads();
        const auto use = [&](std::size_t chunk, std::size_t at, std::span<std::uint8_t> tokens) {
            Block block;
            block.tokens = tokens.data();
            done(chunk, at, tokens.size(), block);
        };
        quads_->for_each_block(use);
    }

    void add_quads(C weight, C* sums) const {
        const auto alone = [&](std::size_t at, std::size_t n) { return tokens_alone(at, n); };
        const auto each = [&](std::size_t at, std::span<std::uint8_t> tokens) {
            Block block;
            block.tokens = tokens.data();
            T y[kBlock];
            elements(at, tokens.size(), block, y);
            loops_.accumulate(y, tokens.size(), weight, sums + at);
        };
        quads_->template add<E>(grid_, weight, sums, alone, each);
    }

    // What is wanted with tokens at, at + 1, ...
    Ahead ahead(std::size_t at) const {
        const auto behind = [&](const T* x) {
            return x ? reinterpret_cast<const char*>(x + at) : nullptr;
        };
        return {behind(ahead_.first), behind(ahead_.second), sizeof(T)};
    }

    void start(std::size_t i, Chunk& chunk) const {
        const std::size_t begin = chunks_.begin(i), n = chunks_.length(i);
        if (mode_ == Mode::blocks) chunk.blocks.emplace(kernels_, parts_[i], n);
        if (mode_ == Mode::sparse) chunk.sparse.emplace(parts_[i], n, usual_);
        if (!by_runs()) return;
        if (!chunk.coder)
            chunk.coder = std::make_unique<TokenDecoder>(kernels_, model_, *slots_, *map_,
                                                         std::min(chunks_.size, chunks_.n));
        chunk.coder->start(parts_[i], begin, n);
    }

    const Kernels& kernels_;
    const ElementKernels<E>& loops_;
    unsigned threads_;
    std::size_t n_;
    Mode mode_{};
    Chunks chunks_{};
    Bytes stored_, low_;
    std::uint8_t usual_ = 0;  // of sparse tokens, and of quads
    Grid<C> grid_{};
    Model model_;
    std::optional<SlotTables> slots_;
    std::optional<ContextMap> map_;
    Vector<Bytes> parts_;
    Vector<Exception<E>> exceptions_;  // by position
    std::pair<const T*, const T*> ahead_{};  // arrays that are wanted with tokens, or null
    RecycledBytes tokens_;  // once it is open; or
    std::optional<DecodedQuads> quads_;
    double energy_ = 0;
};

}  // namespace

void decode_elements(Dtype dtype, Bytes payload, std::size_t n, const Settings& settings, void* y,
                     const void* base) {
    visit(dtype, [&]<class E>(E) {
        using T = typename E::Stored;
        Decoder<E>(payload, n, settings).decode(static_cast<T*>(y), static_cast<const T*>(base));
    });
}

std::unique_ptr<Opened> open_elements(Dtype dtype, Bytes payload, std::size_t n,
                                      const Settings& settings, const void* base) {
    return visit(dtype, [&]<class E>(E) -> std::unique_ptr<Opened> {
        auto decoder = std::make_unique<Decoder<E>>(payload, n, settings);
        decoder->open(static_cast<const typename E::Stored*>(base));
        return decoder;
    });
}

}  // namespace fedsz::uniform

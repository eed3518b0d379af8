#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <type_traits>
#include <vector>

#include "model.hpp"
#include "parallel.hpp"
#include "payload.hpp"
#include "sparse.hpp"
#include "tokens.hpp"

namespace fedsz::uniform {
namespace {

// Turns codes into elements, and puts those where they are wanted: in an array, by themselves or on
// top of another's, or added to sums.
template <class E>
class Sink {
public:
    using T = typename E::Stored;
    using C = typename E::Compute;

    Sink(const Kernels& kernels, T* y, const T* base)
        : kernels_(kernels.of<E>()), y_(y), base_(base) {}
    Sink(const Kernels& kernels, C* sums, C weight)
        : kernels_(kernels.of<E>()), sums_(sums), weight_(weight) {}

    // From now on takes away what it would have added.
    void subtract() { weight_ = -weight_; }

    void put(std::size_t at, std::span<const std::uint8_t> tokens, const std::uint16_t* low,
             const std::int32_t* prediction, const Grid<C>& grid,
             std::span<const Exception<E>> exceptions) const {
        T block[kBlock];
        T* y = y_ ? y_ + at : block;
        kernels_.dequantise(tokens.data(), low, prediction, tokens.size(), grid, y);
        auto next = std::ranges::lower_bound(exceptions, at, {}, &Exception<E>::position);
        for (; next != exceptions.end() && next->position < at + tokens.size(); ++next)
            y[next->position - at] = next->value;
        finish(at, y, tokens.size());
    }

    void put_stored(std::size_t at, Bytes bytes) const {
        T block[kBlock];
        T* y = y_ ? y_ + at : block;
        std::memcpy(y, bytes.data(), bytes.size());
        finish(at, y, bytes.size() / sizeof(T));
    }

private:
    void finish(std::size_t at, T* y, std::size_t n) const {
        if (sums_) kernels_.accumulate(y, n, weight_, sums_ + at);
        if constexpr (std::is_same_v<T, C>)
            if (base_) kernels_.accumulate(base_ + at, n, C(1), y);
    }

    const ElementKernels<E>& kernels_;
    T* y_ = nullptr;
    const T* base_ = nullptr;
    C* sums_ = nullptr;
    C weight_ = 0;
};

// The low bits of elements at, at + 1, ...; at is a multiple of kPlane.
void unpack_low(const Kernels& kernels, Bytes planes, unsigned shift, std::size_t at, std::size_t n,
                std::uint16_t* low) {
    const std::uint8_t* p = planes.data() + at / kPlane * (kPlane / 8) * shift;
    const unsigned below = std::min(shift, 8u), above = shift - below;
    std::uint8_t halves[2][kPlane];
    for (std::size_t i = 0; i < n; i += kPlane) {
        kernels.unpack(p, below, halves[0]);
        kernels.unpack(p + kPlane / 8 * below, above, halves[1]);
        p += kPlane / 8 * shift;
        const std::size_t count = std::min(kPlane, n - i);
        for (std::size_t j = 0; j < count; ++j)
            low[i + j] = std::uint16_t(halves[0][j] | halves[1][j] << 8);
    }
}

// A payload, read as far as its tokens.
template <class E>
class Decoder {
    using T = typename E::Stored;
    using C = typename E::Compute;

public:
    Decoder(Bytes payload, std::size_t n, const Settings& settings)
        : kernels_(kernels_of(settings)), threads_(settings.threads), n_(n) {
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
        if (mode_ > Mode::sparse) throw CorruptPayload("unknown mode");
        if (n == 0) throw CorruptPayload("codes of no elements");
        read_grid(reader);
        if (mode_ == Mode::constant)
            chunks_ = {n, std::size_t(1) << 16};
        else
            read_chunks(reader);
        read_exceptions(reader);
        if (reader.left() > 0) throw CorruptPayload("bytes behind the end");
    }

    void decode(const Sink<E>& sink) const {
        Coders coders(threads_);
        run(coders, sink, [](std::size_t, std::size_t) {});
    }

    // As decode, but whatever ends it early leaves the sums as they were, but for rounding.
    void accumulate(Sink<E> sink) const {
        std::vector<std::size_t> added(chunks_.count());
        Coders coders(threads_);
        try {
            run(coders, sink,
                [&](std::size_t chunk, std::size_t elements) { added[chunk] += elements; });
        } catch (...) {
            // Without another allocation: that memory has run out may be why we are here.
            sink.subtract();
            const auto made = std::ranges::find_if(coders, [](const auto& c) { return bool(c); });
            TokenDecoder* coder = made == coders.end() ? nullptr : made->get();
            for (std::size_t i = 0; i < added.size(); ++i)
                if (added[i] > 0) chunk(i, added[i], coder, sink, [](std::size_t, std::size_t) {});
            throw;
        }
    }

private:
    // Of each worker, once it has begun; in the coded mode alone.
    using Coders = std::vector<std::unique_ptr<TokenDecoder>>;

    void read_grid(Reader& reader) {
        grid_.step = reader.get<C>();
        if (!(grid_.step >= 0 && std::isfinite(grid_.step)))
            throw CorruptPayload("step out of range");
        const std::int64_t base = unzigzag(reader.varint());
        if (base < INT32_MIN || base > INT32_MAX) throw CorruptPayload("base out of range");
        grid_.base = std::int32_t(base);
    }

    void read_chunks(Reader& reader) {
        grid_.shift = reader.get<std::uint8_t>();
        if (grid_.shift > kMaxShift) throw CorruptPayload("shift out of range");
        low_ = reader.take(low_bytes(n_, grid_.shift));
        if (mode_ == Mode::sparse) usual_ = reader.get<std::uint8_t>();
        const auto log = reader.get<std::uint8_t>();
        if (log < kMinChunk || log > kMaxChunk) throw CorruptPayload("chunk size out of range");
        if (mode_ == Mode::coded) {
            model_ = read_model(reader, kernels_, n_);
            slots_.emplace(model_.tables, model_.bits);
            map_.emplace(model_.contexts, model_.contexts.table);
        }
        chunks_ = chunks_of(n_, model_.contexts, log);
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

    std::unique_ptr<TokenDecoder> make_coder() const {
        return mode_ == Mode::coded
                   ? std::make_unique<TokenDecoder>(kernels_, model_, *slots_, *map_,
                                                    std::min(chunks_.size, n_))
                   : nullptr;
    }

    // Puts all chunks into the sink, and calls done(chunk, elements) whenever some are.
    template <class Done>
    void run(Coders& coders, const Sink<E>& sink, const Done& done) const {
        parallel_for(chunks_.count(), threads_, [&](unsigned worker, std::size_t i) {
            if (!coders[worker]) coders[worker] = make_coder();
            chunk(i, chunks_.length(i), coders[worker].get(), sink, done);
            if (coders[worker]) coders[worker]->finish();
        });
    }

    // Puts the first `count` elements of a chunk; how it ends is not looked at.
    template <class Done>
    void chunk(std::size_t i, std::size_t count, TokenDecoder* coder, const Sink<E>& sink,
               const Done& done) const {
        const std::size_t begin = chunks_.begin(i), end = begin + count;
        std::optional<BlocksDecoder> blocks;
        std::optional<SparseDecoder> sparse;
        if (mode_ == Mode::blocks) blocks.emplace(kernels_, parts_[i], chunks_.length(i));
        if (mode_ == Mode::sparse) sparse.emplace(parts_[i], chunks_.length(i), usual_);
        if (mode_ == Mode::coded) coder->start(parts_[i], begin, chunks_.length(i));
        std::uint8_t tokens[kBlock]{}, fractions[kBlock];
        std::uint16_t low[kBlock];
        std::int32_t numbers[kBlock];
        for (std::size_t at = begin; at < end; at += kBlock) {
            const auto some = std::span(tokens).first(std::min(kBlock, end - at));
            if (mode_ == Mode::stored) {
                sink.put_stored(at, stored_.subspan(at * sizeof(T), some.size() * sizeof(T)));
            } else {
                const bool predicted = model_.factors.has_value();
                if (predicted)
                    model_.factors->predict(kernels_, at, std::span(numbers).first(some.size()),
                                            fractions);
                if (blocks)
                    blocks->decode(some);
                else if (sparse)
                    sparse->decode(some);
                else if (mode_ == Mode::coded)
                    coder->decode(fractions, some);
                if (grid_.shift) unpack_low(kernels_, low_, grid_.shift, at, some.size(), low);
                sink.put(at, some, low, predicted ? numbers : nullptr, grid_, exceptions_);
            }
            done(i, some.size());
        }
    }

    const Kernels& kernels_;
    unsigned threads_;
    std::size_t n_;
    Mode mode_{};
    Chunks chunks_{};
    Bytes stored_, low_;
    std::uint8_t usual_ = 0;  // the token of the sparse mode
    Grid<C> grid_{};
    Model model_;
    std::optional<SlotTables> slots_;
    std::optional<ContextMap> map_;
    std::vector<Bytes> parts_;
    std::vector<Exception<E>> exceptions_;  // by position
};

}  // namespace

void decode_elements(Dtype dtype, Bytes payload, std::size_t n, const Settings& settings, void* y,
                     const void* base) {
    visit(dtype, [&]<class E>(E) {
        using T = typename E::Stored;
        const Sink<E> sink(kernels_of(settings), static_cast<T*>(y), static_cast<const T*>(base));
        Decoder<E>(payload, n, settings).decode(sink);
    });
}

void accumulate_elements(Dtype dtype, Bytes payload, std::size_t n, double weight,
                         const Settings& settings, void* sums) {
    visit(dtype, [&]<class E>(E) {
        using C = typename E::Compute;
        const Sink<E> sink(kernels_of(settings), static_cast<C*>(sums), C(weight));
        Decoder<E>(payload, n, settings).accumulate(sink);
    });
}

}  // namespace fedsz::uniform

#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>

#include "analysis.hpp"
#include "exceptions.hpp"
#include "factorise.hpp"
#include "grid.hpp"
#include "low_bits.hpp"
#include "model.hpp"
#include "parallel.hpp"
#include "payload.hpp"
#include "quad_choice.hpp"
#include "quantiser.hpp"
#include "recycled.hpp"
#include "sparse.hpp"
#include "survey.hpp"
#include "tokens.hpp"

namespace fedsz::uniform {
namespace {

constexpr std::size_t kSample = 1024, kLargeSample = 4096;
constexpr std::size_t kFewElements = 512;  // are not worth a table
constexpr std::size_t kCountable = std::numeric_limits<std::uint32_t>::max();  // see Counts
constexpr unsigned kFastChunk = 16;        // log2 of a chunk's elements in the blocks mode

// Efforts from which on an encoder looks for more.
constexpr unsigned kTables = 1, kScales = 3, kPlanes = 4, kLowRank = 7;

template <class E>
class Encoder {
    using T = typename E::Stored;
    using C = typename E::Compute;
    using Octets = Vector<std::uint8_t>;

public:
    Encoder(const Operands<E>& operands, const Geometry& geometry, double bound,
            const Settings& settings, std::span<std::uint8_t> payload, double step, T* left)
        : x_(operands, kernels_of(settings)),
          left_(left),
          n_(geometry.size()),
          geometry_(geometry),
          bound_(step > 0 ? step / 2 : bound),
          step_(step),
          effort_(settings.effort),
          threads_(settings.threads),
          kernels_(kernels_of(settings)),
          writer_(payload),
          quantiser_(x_, kernels_, threads_, left) {}

    // False where the elements had better be stored.
    bool encode() {
        if (n_ == 0 || !(bound_ > 0) || !measure()) return false;
        const bool blocks = effort_ < kTables || n_ < kFewElements || n_ > kCountable;
        if (constant_)
            encode_constant();
        else if (blocks)
            encode_blocks();
        else
            encode_coded();
        write_exceptions(quantiser_.exceptions(), writer_);
        return !writer_.full() && writer_.size() < n_ * sizeof(T) + 1;
    }

    std::size_t size() const { return writer_.size(); }

    double max_error() const { return quantiser_.max_error(); }

    // The sum of squares of what was left out.
    double squares() const { return quantiser_.squares(); }

    // Puts the elements themselves at `out`; returns the sum of squares of what that leaves out.
    double store(std::uint8_t* out) const {
        double squares = 0;
        T block[kBlock];
        for (std::size_t at = 0; at < n_; at += kBlock) {
            const std::size_t n = std::min(kBlock, n_ - at);
            const T* x = x_.read(at, n, block);
            std::memcpy(out + at * sizeof(T), x, n * sizeof(T));
            if (left_) squares += x_.leave(at, n, x, left_);
        }
        return squares;
    }

private:
    void write_head(Mode mode) {
        writer_.put(std::uint8_t(unsigned(E::dtype) << 4 | unsigned(mode)));
        writer_.put(grid_.step);
        writer_.varint(zigzag(grid_.base));
        if (mode != Mode::constant && mode != Mode::quads)
            writer_.put(std::uint8_t(grid_.shift));
    }

    bool measure() {
        const bool scales = effort_ >= kScales && geometry_.rows > 1 && geometry_.columns > 1 &&
                            geometry_.columns <= kMaxColumns &&
                            8 * (geometry_.rows + geometry_.channels()) <= n_;
        const auto found = survey<E>(x_, geometry_, bound_, scales, kernels_, threads_);
        if (!found) return false;
        survey_ = std::move(*found);
        // A convolution's columns share the scale of their input channel.
        const std::size_t planes = geometry_.planes;
        for (std::size_t c = 0; c < survey_.columns.size(); ++c) {
            if (c % planes == 0)
                survey_.columns[c / planes] = survey_.columns[c];
            else
                survey_.columns[c / planes] += survey_.columns[c];
        }
        survey_.columns.resize(survey_.columns.size() / planes);
        // Where tokens cannot stand for all numbers, it takes more to see which to leave out.
        const bool many = survey_.limits.high / bound_ - survey_.limits.low / bound_ > 500;
        Vector<double> some = sample<E>(x_, n_, many ? kLargeSample : kSample);
        // All but a hundredth at either end, where outliers would be.
        const auto typical = [&some] {
            if (some.empty()) return 0.0;
            std::ranges::sort(some);
            const std::size_t few = some.size() / 100;
            return std::max(std::abs(some[few]), std::abs(some[some.size() - 1 - few]));
        };
        const double most = survey_.limits.magnitude();
        if (!(step_ > 0 ? take_step(step_, grid_)
                        : choose_step<E>(typical, most, bound_, grid_)))
            return false;
        Vector<std::int32_t> numbers(some.size());
        std::ranges::transform(some, numbers.begin(),
                               [&](double v) { return number_of<E>(v, grid_); });
        const std::int32_t low = number_of<E>(survey_.limits.low, grid_);
        const std::int32_t high = number_of<E>(survey_.limits.high, grid_);
        sort(numbers);
        constant_ = low == high;
        choose_window(low, high, numbers, grid_);
        const std::int64_t middle = numbers.empty() ? low : numbers[numbers.size() / 2];
        fill_ =
            std::uint8_t(std::clamp<std::int64_t>((middle - grid_.base) >> grid_.shift, 0, 255));
        return true;
    }

    // Quantises all elements, chunk by chunk, and calls use(worker, chunk, begin, tokens).
    template <class Use>
    void quantise_chunks(const Chunks& chunks, std::span<std::uint8_t> tokens,
                         std::span<std::uint8_t> low, const Use& use) {
        quantiser_.begin(chunks.count(), grid_, fill_, factors_ ? &*factors_ : nullptr);
        Vector<Vector<std::uint8_t>> own(threads_);
        parallel_for(chunks.count(), threads_, [&](unsigned worker, std::size_t i) {
            const std::size_t begin = chunks.begin(i), n = chunks.length(i);
            if (tokens.empty()) own[worker].resize(n);
            const auto here =
                tokens.empty() ? std::span(own[worker]).first(n) : tokens.subspan(begin, n);
            for (std::size_t at = 0; at < n; at += kBlock)
                quantiser_.quantise(worker, i, begin + at,
                                    here.subspan(at, std::min(kBlock, n - at)), low);
            use(worker, i, begin, here);
        });
    }

    // Writes what encode(worker, i) returns for each chunk: something with size() and write().
    template <class Encode>
    void write_chunks(std::size_t count, const Encode& encode) {
        const auto sizes = writer_.reserve(4 * count);
        // Some chunks at a time, so that what waits to be written stays small.
        const std::size_t most = 8 * std::size_t(threads_);
        for (std::size_t first = 0; first < count && !writer_.full(); first += most) {
            const std::size_t some = std::min(most, count - first);
            Vector<Vector<std::uint8_t>> done(some);
            parallel_for(some, threads_, [&](unsigned worker, std::size_t i) {
                encode(worker, first + i, done[i]);
            });
            for (std::size_t i = 0; i < some; ++i) {
                const auto size = std::uint32_t(done[i].size());
                if (!sizes.empty()) std::memcpy(&sizes[4 * (first + i)], &size, 4);
                writer_.put(done[i].data(), size);
            }
        }
    }

    void encode_constant() {
        write_head(Mode::constant);
        quantise_chunks({n_, std::size_t(1) << kFastChunk}, {}, {}, [](auto...) {});
    }

    void encode_blocks() {
        const Chunks chunks{n_, std::size_t(1) << kFastChunk};
        write_head(Mode::blocks);
        const auto low = writer_.reserve(low_bytes(n_, grid_.shift));
        writer_.put(std::uint8_t(kFastChunk));
        if (writer_.full()) return;
        quantiser_.begin(chunks.count(), grid_, fill_, factors_ ? &*factors_ : nullptr);
        write_chunks(chunks.count(), [&](unsigned worker, std::size_t i, Octets& out) {
            const std::size_t begin = chunks.begin(i), n = chunks.length(i);
            const RecycledBytes memory(n), room(blocks_capacity(n));
            const std::span tokens(memory.get(), n);
            for (std::size_t at = 0; at < n; at += kBlock)
                quantiser_.quantise(worker, i, begin + at,
                                    tokens.subspan(at, std::min(kBlock, n - at)), low);
            const auto size = fedsz::uniform::encode_blocks(kernels_, tokens, room.get());
            out.assign(room.get(), room.get() + size);
        });
    }

    void encode_coded() {
        // The low bits come first: their place is known before the tokens are.
        std::span<std::uint8_t> low;
        if (grid_.shift) {
            write_head(Mode::coded);
            low = writer_.reserve(low_bytes(n_, grid_.shift));
            if (writer_.full()) return;
        }
        const RecycledBytes memory(n_);
        const std::span tokens(memory.get(), n_);
        Choice choice = choose_contexts(tokens, low);
        if (!grid_.shift) {
            if (const auto sparse = encode_sparse(tokens, choice, threads_)) {
                write_head(Mode::sparse);
                return write(*sparse, writer_);
            }
            if (effort_ >= kLowRank) choice = consider_low_rank(tokens, std::move(choice));
            if (auto quads = choose_quads(kernels_, tokens, choice, plain_, threads_))
                return write_quads(tokens, *quads);
            write_head(Mode::coded);
        }

        Model model{std::move(choice.contexts), factors_, {}, probability_bits(n_, choice.bits)};
        for (const Counts& counts : choice.counts) model.tables.push_back(fit(counts, model.bits));
        write_runs(model, choice.bits, tokens, [](std::size_t, std::size_t) { return Octets(); });
    }

    void write_quads(std::span<const std::uint8_t> tokens, QuadChoice& choice) {
        write_head(Mode::quads);
        writer_.put(choice.usual);
        Model& model = choice.model;
        write_runs(model, choice.bits, choice.quads, [&](std::size_t begin, std::size_t end) {
            return others_of(kernels_, tokens, model.quads->rows, choice.quads, begin, end);
        });
    }

    // Chunk size, model and chunks; behind symbols begin..end of a chunk come others(begin, end).
    template <class Others>
    void write_runs(Model& model, double bits, std::span<const std::uint8_t> symbols,
                    const Others& others) {
        const unsigned log = chunk_log(bits, symbols.size(), model);
        writer_.put(std::uint8_t(log));
        write(model, kernels_, writer_);

        const Chunks chunks = chunks_of(symbols.size(), model.contexts, log);
        const RangeTables ranges(model.frequencies(), model.bits);
        const ContextMap map(model.of_symbols(), model.contexts.table);
        const std::size_t most = chunks.length(0) * (model.quads ? 1 + kQuad : 1);
        Vector<std::unique_ptr<TokenEncoder>> encoders(threads_);
        write_chunks(chunks.count(), [&](unsigned worker, std::size_t i, Octets& out) {
            auto& encoder = encoders[worker];
            if (!encoder)
                encoder = std::make_unique<TokenEncoder>(kernels_, model, ranges, map, most);
            const std::size_t begin = chunks.begin(i), n = chunks.length(i);
            const RunEncoder& run =
                encoder->encode(begin, symbols.subspan(begin, n), others(begin, begin + n));
            out.resize(run.size());
            run.write(out);
        });
    }

    // Takes the prediction of low rank, if there is one and it saves more than its factors cost.
    Choice consider_low_rank(std::span<std::uint8_t> tokens, Choice plain) {
        constexpr std::size_t smallest = 1 << 16;
        if (geometry_.planes > 1 || survey_.rows.empty() || n_ < smallest) return plain;
        factors_ =
            find_factors<E>(x_, geometry_, grid_.inverse, survey_.rows, plain.bits / double(n_),
                            4u << (effort_ - kLowRank + 1), kernels_, threads_);
        if (!factors_) return plain;
        const auto grid = grid_;
        const std::uint8_t fill = fill_;
        // What a prediction leaves lies around zero.
        grid_.base = -128;
        fill_ = 128;
        Choice predicted = choose_contexts(tokens, {});
        if (predicted.bits + factor_bits(*factors_) < plain.bits) return predicted;
        factors_.reset();
        grid_ = grid;
        fill_ = fill;
        return choose_contexts(tokens, {});
    }

    // Quantises, and picks the contexts that cost least, tables and all.
    Choice choose_contexts(std::span<std::uint8_t> tokens, std::span<std::uint8_t> low) {
        Contexts full;
        full.geometry = geometry_;
        full.side = factors_                                      ? Side::fraction
                    : effort_ >= kPlanes && geometry_.planes >= 4 ? Side::neighbours
                                                                  : Side::none;
        full.centre = fill_;
        if (!survey_.rows.empty())
            classify(survey_.rows, survey_.columns, n_, most_classes(full.sides()), full);
        plain_ = full;
        plain_.side = Side::none;
        Vector<std::uint8_t> same(full.count());
        std::iota(same.begin(), same.end(), std::uint8_t(0));
        const ContextMap map(full, same);
        Vector<Vector<Counts>> counted(threads_);
        quantise_chunks(chunks_of(n_, full, kFastChunk), tokens, low,
                        [&](unsigned worker, std::size_t, std::size_t begin,
                            std::span<const std::uint8_t> some) {
                            counted[worker].resize(counts_of(full, n_));
                            count_tokens(kernels_, full, factors_ ? &*factors_ : nullptr, map,
                                         begin, some, counted[worker]);
                        });
        return choose(full, total(counted, full.count()));
    }

    // Few elements could not pay for many classes: looking at them would take longer than coding.
    unsigned most_classes(unsigned sides) const {
        const auto affordable = unsigned(std::clamp<std::size_t>(n_ >> 10, 4, kClasses));
        return std::min(affordable, kContexts / sides);
    }

    Elements<E> x_;
    T* left_;  // or null
    std::size_t n_;
    Geometry geometry_;
    double bound_, step_;
    unsigned effort_, threads_;
    const Kernels& kernels_;
    Writer writer_;

    Survey survey_;
    Grid<C> grid_{};
    bool constant_ = false;
    std::uint8_t fill_ = 0;  // the token of elements that are exceptions
    std::optional<Factors> factors_;
    Contexts plain_;  // without a side
    Quantiser<E> quantiser_;
};

}  // namespace

Encoded encode_elements(Dtype dtype, const void* x, const void* base, const Geometry& geometry,
                        double bound, const Settings& settings, std::span<std::uint8_t> payload,
                        double step, const Residual& residual, void* left) {
    return visit(dtype, [&]<class E>(E) -> Encoded {
        using T = typename E::Stored;
        Encoder<E> encoder(operands_of<E>(x, base, residual), geometry, bound, settings, payload,
                           step, static_cast<T*>(left));
        if (encoder.encode()) return {encoder.size(), encoder.max_error(), encoder.squares()};
        payload[0] = std::uint8_t(unsigned(dtype) << 4 | unsigned(Mode::stored));
        const double squares = encoder.store(&payload[1]);
        return {1 + geometry.size() * sizeof(T), 0.0, squares};
    });
}

}  // namespace fedsz::uniform

// What the codecs must stand, and Python cannot put them to: tests/compressors/test_portable.py.
//
//   checks NAME     exits with 0 if they do

#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "corrupt.hpp"
#include "methods.hpp"
#include "parallel.hpp"
#include "payload.hpp"
#include "ring.hpp"
#include "szx.hpp"
#include "tokens.hpp"
#include "uniform.hpp"
#include "xxh3.hpp"

namespace {

// Asked at every allocation whether that shall fail, where it is not null.
std::atomic<bool (*)()> out_of_memory{nullptr};

void* allocate(std::size_t size) {
    const auto asked = out_of_memory.load();
    void* memory = asked && asked() ? nullptr : std::malloc(size);
    if (memory == nullptr) throw std::bad_alloc();
    return memory;
}

}  // namespace

void* operator new(std::size_t size) { return allocate(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace {

using namespace fedsz;
using namespace fedsz::uniform;

void expect(bool holds, const std::string& what) {
    if (!holds) throw std::runtime_error(what);
}

// Whether `work` throws an exception of type Error.
template <class Error, class Work>
bool throws(const Work& work) {
    try {
        work();
    } catch (const Error&) {
        return true;
    }
    return false;
}

// Memory fails where `when` says, while `work` is done.
template <class Work>
void with_little_memory(bool (*when)(), const Work& work) {
    struct Guard {
        ~Guard() { out_of_memory = nullptr; }
    } guard;
    out_of_memory = when;
    work();
}

// An element that lies at an odd address is refused, in whatever way it comes.
void misaligned() {
    constexpr std::size_t n = 1000;
    const Settings settings;
    std::vector<double> memory(n + 1), aligned(n);
    void* odd = reinterpret_cast<char*>(memory.data()) + 1;
    std::vector<std::uint8_t> payload(capacity(Dtype::float64, n));
    const auto refused = [](const char* what, const auto& work) {
        expect(throws<std::invalid_argument>(work), std::string(what) + " may lie anywhere");
    };
    for (const Dtype dtype : {Dtype::float32, Dtype::float64, Dtype::float16, Dtype::bfloat16}) {
        const Geometry geometry{1, n, 1, 1};
        refused("x", [&] { encode(dtype, odd, geometry, 0.1, settings, payload); });
        const Encoded zeros = encode(dtype, aligned.data(), geometry, 0.1, settings, payload);
        const auto some = uniform::Bytes(payload).first(zeros.size);
        refused("y", [&] { decode(dtype, some, n, settings, odd); });
        refused("sums", [&] { accumulate(dtype, some, n, 1.0, settings, odd); });
        if (dtype != Dtype::float32 && dtype != Dtype::float64) continue;
        refused("a base of x",
                [&] { encode(dtype, aligned.data(), geometry, 0.1, settings, payload, odd); });
        refused("a base of y", [&] { decode(dtype, some, n, settings, aligned.data(), odd); });
        refused("x", [&] { compare(dtype, odd, aligned.data(), n, {}, settings); });
        refused("a base", [&] { compare(dtype, aligned.data(), odd, n, {}, settings); });
        const void* x = aligned.data();
        refused("a residual", [&] {
            encode(dtype, x, geometry, 0.1, settings, payload, nullptr, 0, {odd, 1});
        });
        refused("what is left", [&] {
            encode(dtype, x, geometry, 0.1, settings, payload, nullptr, 0, {}, odd);
        });
        refused("a residual", [&] { compare(dtype, x, x, n, {}, settings, {odd, 1}); });
    }
}

std::atomic<int> allocations_left;

// What threads were to do is done without them, whichever allocation fails.
void threads() {
    std::vector<std::atomic<int>> done(1000);
    for (int allowed = 0; allowed < 50; ++allowed) {
        for (auto& times : done) times = 0;
        allocations_left = allowed;
        with_little_memory([] { return allocations_left-- <= 0; },
                           [&] {
                               parallel_for(done.size(), 9, [&](unsigned, std::size_t i) {
                                   ++done[i];
                               });
                           });
        for (const auto& times : done) expect(times == 1, "not all was done once");
    }
}

// Every level divides as the baseline does, by integers: every frequency, at the edges of quotients.
void quotients() {
    const std::vector<std::uint8_t> symbols(kLanes);
    std::vector<std::uint16_t> words(2 * kLanes);
    for (unsigned bits = 10; bits <= 12; ++bits) {
        const std::uint32_t whole = 1u << bits, most = 1u << (31 - bits);  // quotients are below it
        for (std::uint32_t frequency = 1; frequency < whole; ++frequency) {
            const Range range = frequency | (whole - frequency) << 16;
            std::uint32_t states[kLanes];
            for (unsigned lane = 0; lane < kLanes; ++lane) {
                const std::uint32_t quotient = most - 1 - lane / 2 * (most / kLanes);
                states[lane] = quotient * frequency + (lane % 2 ? frequency - 1 : 0);
            }
            const auto stepped = [&](const Kernels& level) {
                std::vector<std::uint32_t> own(states, states + kLanes);
                std::uint16_t* last = words.data() + words.size();
                level.encode(own.data(), last, &range, bits, nullptr, symbols.data(), 1);
                return own;
            };
            for (std::size_t i = 1; i < levels<Built>().count; ++i)
                expect(stepped(*levels<Built>().level[i]) == stepped(Built::baseline),
                       "a quotient is wrong");
        }
    }
}

// Widths of blocks are those that were checked, though their bytes change.
void widths() {
    constexpr std::size_t n = 3 * kPlane;
    std::vector<std::uint8_t> tokens(n), bytes(blocks_capacity(n));
    for (std::size_t i = 0; i < n; ++i) tokens[i] = std::uint8_t(i);
    for (std::size_t i = 0; i < levels<Built>().count; ++i) {
        const Kernels& kernels = *levels<Built>().level[i];
        bytes.resize(encode_blocks(kernels, tokens, bytes.data()));
        for (const unsigned width : {8, 9, 255}) {
            std::vector<std::uint8_t> changing = bytes;
            BlocksDecoder decoder(kernels, changing, n);
            changing[1] = changing[3] = changing[5] = std::uint8_t(width);
            expect(throws<CorruptPayload>([&] { decoder.decode(tokens); }), "a width was believed");
        }
    }
}

// The mode of szx is the one that was checked, though its byte changes. A payload that is long for
// its elements fails to decode in either mode, but it must not be copied over what lies behind them.
void mode() {
    std::vector<std::byte> payload(std::size_t(1) << 26);
    std::vector<float> x(szx::block_length);
    volatile auto* head = reinterpret_cast<unsigned char*>(payload.data());
    std::atomic<bool> ended{false};
    std::thread changing([&] {
        while (!ended) *head = !*head;
    });
    bool all = true;
    for (int trial = 0; trial < 200'000; ++trial)
        all = throws<CorruptPayload>([&] { szx::decode(payload, x); }) && all;
    ended = true;
    changing.join();
    expect(all, "a payload of another size was decoded");
}

// The kernels of methods touch their own elements alone, of any number, and gaps of any bytes are
// refused or are no less than 0.
void kernels() {
    for (std::size_t n = 0; n < 200; ++n) {
        const methods::Draws draws(n * 0x0123456789ABCDEF);
        std::vector<std::uint64_t> words(n);
        methods::words(draws, n, words);
        std::vector<float> x(n, 1.5f);
        std::vector<double> columns(n / 3 + 1), sums(n), across(n), up(n);
        methods::uniforms(draws, n, sums);
        methods::hexagonal_dither(draws, n, across, up);
        methods::nearest_hexagonal(across, up);
        const std::vector<float> start(n);
        std::vector<float> points(n), left(n);
        methods::nearest_points(x, start, 0.5f, start, 0.25, points, left);
        methods::nearest_points(x, {}, 1.0f, {}, 0.25, points, {});
        methods::comes_back(points, x);
        std::vector<std::int16_t> labels(n);
        std::vector<std::int64_t> counts(n / 3 + 2);
        std::vector<double> totals(counts.size());
        methods::cluster<float>(x, columns, labels, totals, counts);
        methods::flip_signs<float>(draws, x);
        methods::add_to_sketch<float>(draws, n, x, columns);
        methods::add_from_sketch<double>(draws, n, columns, sums);
        methods::hadamard<float>(std::span(x).first(n / 8 * 8), 8);
        methods::hadamard<double>(sums, 1);
        std::vector<std::int64_t> indices(n), gaps(n % 40);
        for (std::size_t i = 0; i < n; ++i) indices[i] = std::int64_t(i);
        methods::add_sparse<float>(indices, std::vector<float>(n, 2.0f), 0.5f, x);
        for (unsigned width = 0; width < 50; ++width) {
            const auto code = std::as_bytes(std::span(words)).first(words.size() * 8 / (width + 1));
            const bool corrupt = throws<CorruptPayload>(
                [&] { methods::decode_gaps(code, width, gaps); });
            for (const std::int64_t gap : gaps) expect(corrupt || gap >= 0, "a gap below 0");
        }
    }
    std::vector<float> sums(3);
    const auto adds = [&](std::int64_t index) {
        return [&sums, index] {
            methods::add_sparse<float>(std::vector<std::int64_t>{index}, std::vector<float>{1}, 1, sums);
        };
    };
    expect(throws<std::out_of_range>(adds(3)), "an index may lie behind the sums");
    expect(throws<std::out_of_range>(adds(-1)), "an index may lie before the sums");
}

// Tokens of every width, of any number, come back from bytes that are exactly theirs.
template <class T>
void packed() {
    for (unsigned bits = 1; bits <= 8 * sizeof(T); ++bits) {
        for (std::size_t n = 0; n < 100; ++n) {
            std::vector<T> tokens(n), sums(n);
            for (std::size_t i = 0; i < n; ++i)
                tokens[i] = T(i * 0x9E3779B97F4A7C15 >> (64 - bits));
            std::vector<std::byte> bytes(ring::packed_size(n, bits));
            ring::pack<T>(tokens, bits, bytes);
            ring::unpack_add<T>(bytes, bits, sums);
            expect(sums == tokens, "packed tokens are others");
            bytes.push_back({});
            expect(throws<CorruptPayload>([&] { ring::unpack_add<T>(bytes, bits, sums); }),
                   "a byte too many may be there");
        }
    }
}

// Digests of every instruction set are the same, at whatever address and in whatever pieces.
void digests() {
    std::vector<std::uint8_t> bytes(3000);
    for (std::size_t i = 0; i < bytes.size(); ++i)
        bytes[i] = std::uint8_t(i * 0x9E3779B97F4A7C15 >> 56);
    for (std::size_t n = 0; n + 64 < bytes.size(); n += 1 + n / 40) {
        const std::uint8_t* const from = bytes.data() + n % 64;
        stream::Xxh3 whole;
        whole.add(from, n);
        for (std::size_t i = 0; i < levels<stream::Built>().count; ++i) {
            stream::Xxh3 pieces(*levels<stream::Built>().level[i]);
            const std::size_t first = n * 7 / 11, second = n - first;
            pieces.add(from, first);
            pieces.add(from + first, second);
            expect(pieces.digest() == whole.digest() && pieces.digest64() == whole.digest64(),
                   "digests differ");
        }
    }
}

const std::map<std::string, std::function<void()>> kChecks{
    {"misaligned", misaligned}, {"threads", threads}, {"widths", widths},
    {"mode", mode}, {"kernels", kernels}, {"quotients", quotients},
    {"packed8", packed<std::uint8_t>}, {"packed16", packed<std::uint16_t>},
    {"packed32", packed<std::uint32_t>}, {"digests", digests},
};

}  // namespace

int main(int count, char** arguments) {
    const auto check = count == 2 ? kChecks.find(arguments[1]) : kChecks.end();
    if (check == kChecks.end()) {
        std::fprintf(stderr, "usage: checks NAME\n");
        return 2;
    }
    try {
        check->second();
    } catch (const std::exception& error) {
        std::fprintf(stderr, "checks: %s: %s\n", arguments[1], error.what());
        return 1;
    }
    return 0;
}

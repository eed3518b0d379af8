// The codecs without Python, for machines that tests reach by an emulator alone:
// tests/compressors/test_portable.py.
//
//   portable CASES RESULTS
//
// Both files are little-endian, without padding, one record after the other. A case is
//
//   codec 1 (0: szx, 1: uniform), dtype 1, effort 1, threads 1, flush 1 (1: as on a host that
//   flushes subnormals), bound 8, weight 8, rows 8, columns 8, planes 4, width 4,
//   size of payload 8, elements, payload: what another machine made of them
//
// and its result
//
//   largest error 8, size of payload 8, payload made here, the elements that the payload of the
//   case decodes to, and for uniform what ones become when weight times these are added to them.

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "bytes.hpp"
#include "floats.hpp"
#include "payload.hpp"
#include "szx.hpp"
#include "uniform.hpp"

namespace {

using namespace fedsz;
using uniform::Dtype;

// Flushes subnormals for its scope, as torch.set_flush_denormal(True) does.
class Flushing {
public:
    explicit Flushing(bool wanted) : saved_(control()) {
        if (!wanted) return;
#if defined(__aarch64__)
        control(saved_ | 1u << 24);  // FPCR.FZ
#elif defined(__x86_64__)
        control(saved_ | 0x8040);  // MXCSR: FTZ, DAZ
#endif
        check();
    }
    // A codec has to leave its host the settings that it found.
    void check() const {
        volatile float small = 1e-30f;
        if (small * 1e-10f != 0.0f) throw std::runtime_error("subnormals are not flushed");
    }
    ~Flushing() { control(saved_); }
    Flushing(const Flushing&) = delete;
    Flushing& operator=(const Flushing&) = delete;

private:
#if defined(__aarch64__)
    using Word = std::uint64_t;
    static Word control() {
        Word word;
        asm volatile("mrs %0, fpcr" : "=r"(word));
        return word;
    }
    static void control(Word word) { asm volatile("msr fpcr, %0" : : "r"(word) : "memory"); }
#elif defined(__x86_64__)
    using Word = unsigned;
    static Word control() { return _mm_getcsr(); }
    static void control(Word word) { _mm_setcsr(word); }
#else
    using Word = unsigned;
    static Word control() { return 0; }
    static void control(Word) {}
#endif

    Word saved_;
};

struct Case {
    explicit Case(uniform::Reader& reader)
        : codec(reader.get<std::uint8_t>()), dtype(Dtype(reader.get<std::uint8_t>())) {
        settings.effort = reader.get<std::uint8_t>();
        settings.threads = reader.get<std::uint8_t>();
        flush = reader.get<std::uint8_t>() != 0;
        bound = reader.get<double>();
        weight = reader.get<double>();
        geometry.rows = reader.get<std::uint64_t>();
        geometry.columns = reader.get<std::uint64_t>();
        geometry.planes = reader.get<std::uint32_t>();
        geometry.width = reader.get<std::uint32_t>();
        const auto size = reader.get<std::uint64_t>();
        const uniform::Bytes bytes = reader.take(geometry.size() * uniform::size_of(dtype));
        elements.assign(bytes.begin(), bytes.end());  // aligned
        payload = reader.take(size);
    }

    std::uint8_t codec;
    Dtype dtype;
    uniform::Settings settings;
    bool flush;
    double bound, weight;
    uniform::Geometry geometry;
    std::vector<std::uint8_t> elements;
    uniform::Bytes payload;
};

struct Result {
    double max_error;
    std::vector<std::uint8_t> payload, decoded, sums;
};

std::span<std::byte> as_bytes(std::vector<std::uint8_t>& octets) {
    return std::as_writable_bytes(std::span(octets));
}

Result run_szx(const Case& c) {
    const DefaultFloats floats;
    const std::size_t n = c.geometry.size();
    const std::span x(reinterpret_cast<const float*>(c.elements.data()), n);
    const szx::Plan plan = szx::plan(x, c.bound);
    Result result{plan.max_error, std::vector<std::uint8_t>(plan.size), {}, {}};
    szx::write(x, plan, as_bytes(result.payload));
    const auto payload = std::as_bytes(c.payload);
    szx::check_size(payload, n);
    result.decoded.resize(n * sizeof(float));
    szx::decode(payload, {reinterpret_cast<float*>(result.decoded.data()), n});
    return result;
}

template <class Sum>
std::vector<std::uint8_t> ones(std::size_t n) {
    const std::vector<Sum> values(n, Sum(1));
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(values.data());
    return {bytes, bytes + n * sizeof(Sum)};
}

Result run_uniform(const Case& c) {
    const std::size_t n = c.geometry.size();
    Result result{0, std::vector<std::uint8_t>(uniform::capacity(c.dtype, n)), {}, {}};
    const uniform::Encoded encoded = uniform::encode(c.dtype, c.elements.data(), c.geometry,
                                                     c.bound, c.settings, result.payload);
    result.max_error = encoded.max_error;
    result.payload.resize(encoded.size);
    result.decoded.resize(c.elements.size());
    uniform::decode(c.dtype, c.payload, n, c.settings, result.decoded.data());
    result.sums = c.dtype == Dtype::float64 ? ones<double>(n) : ones<float>(n);
    uniform::accumulate(c.dtype, c.payload, n, c.weight, c.settings, result.sums.data());
    return result;
}

Result run(const Case& c) { return c.codec == 0 ? run_szx(c) : run_uniform(c); }

std::vector<std::uint8_t> read(const char* path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw std::runtime_error("cannot read " + std::string(path));
    return {std::istreambuf_iterator<char>(file), {}};
}

class Output {
public:
    explicit Output(const char* path) : file_(path, std::ios::binary) {
        file_.exceptions(std::ios::badbit | std::ios::failbit);
    }
    template <class T>
    void put(T value) {
        file_.write(reinterpret_cast<const char*>(&value), sizeof value);
    }
    void put(const std::vector<std::uint8_t>& bytes) {
        file_.write(reinterpret_cast<const char*>(bytes.data()), std::streamsize(bytes.size()));
    }

private:
    std::ofstream file_;
};

void run(const char* cases, const char* results) {
    const std::vector<std::uint8_t> bytes = read(cases);
    uniform::Reader reader(bytes);
    Output output(results);
    while (reader.left() > 0) {
        const Case c(reader);
        const Flushing flushing(c.flush);
        const Result result = run(c);
        if (c.flush) flushing.check();
        output.put(result.max_error);
        output.put(std::uint64_t(result.payload.size()));
        output.put(result.payload);
        output.put(result.decoded);
        output.put(result.sums);
    }
}

}  // namespace

int main(int count, char** arguments) {
    if (count != 3) {
        std::fprintf(stderr, "usage: portable CASES RESULTS\n");
        return 2;
    }
    try {
        run(arguments[1], arguments[2]);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "portable: %s\n", error.what());
        return 1;
    }
    return 0;
}

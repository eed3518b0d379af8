#include "uniform.hpp"

#include <stdexcept>
#include <string>
#include <utility>

#include "aligned.hpp"
#include "floats.hpp"
#include "payload.hpp"

namespace fedsz::uniform {

const Kernels& kernels_of(const Settings& settings) {
    return settings.kernels ? *settings.kernels : levels<Built>().best();
}

namespace {

constexpr unsigned kMostEffort = 9, kMostThreads = 1024;
constexpr unsigned kMostPlanes = 255;  // a payload has a byte for them, and for their width

[[noreturn]] void refuse(const char* what, unsigned value, unsigned low, unsigned high) {
    throw std::invalid_argument(std::string(what) + " must lie in " + std::to_string(low) + ".." +
                                std::to_string(high) + ", got " + std::to_string(value));
}

void check(const Settings& settings) {
    if (settings.effort > kMostEffort) refuse("effort", settings.effort, 0, kMostEffort);
    if (settings.threads < 1 || settings.threads > kMostThreads)
        refuse("threads", settings.threads, 1, kMostThreads);
}

void check(const Geometry& geometry) {
    if (geometry.planes < 1 || geometry.planes > kMostPlanes)
        refuse("planes", geometry.planes, 1, kMostPlanes);
    if (geometry.width < 1 || geometry.width > kMostPlanes)
        refuse("width", geometry.width, 1, kMostPlanes);
    if (geometry.columns % geometry.planes != 0)
        throw std::invalid_argument("kernels of " + std::to_string(geometry.planes) +
                                    " planes do not fill " + std::to_string(geometry.columns) +
                                    " columns");
}

// Elements of any dtype, or null.
void check_elements(Dtype dtype, const void* x, std::size_t n, const char* what) {
    if (n > 0) visit(dtype, [&]<class E>(E) { check_aligned<typename E::Stored>(x, what); });
}

void check_sums(Dtype dtype, const void* sums, std::size_t n) {
    if (n > 0)
        visit(dtype, [&]<class E>(E) { check_aligned<typename E::Compute>(sums, "sums"); });
}

// Adds with the arithmetic that payloads count on, to sums that lie where they should.
class Guarded final : public Opened {
public:
    Guarded(Dtype dtype, std::size_t n, std::unique_ptr<Opened> opened)
        : dtype_(dtype), n_(n), opened_(std::move(opened)) {}

    double energy() const override { return opened_->energy(); }

    void add(double weight, void* sums) const override {
        check_sums(dtype_, sums, n_);
        const DefaultFloats floats;
        opened_->add(weight, sums);
    }

private:
    Dtype dtype_;
    std::size_t n_;
    std::unique_ptr<Opened> opened_;
};

}  // namespace

// Calls into other source files: within one, arithmetic could move out of the guard's scope.

std::size_t capacity(Dtype dtype, std::size_t n) { return n * size_of(dtype) + 64; }

Encoded encode(Dtype dtype, const void* x, const Geometry& geometry, double bound,
               const Settings& settings, std::span<std::uint8_t> payload, const void* base,
               double step, const Residual& residual, void* left) {
    check(settings);
    check(geometry);
    if (!(bound >= 0))
        throw std::invalid_argument("bound must be 0 or more, got " + std::to_string(bound));
    if (!(step >= 0))
        throw std::invalid_argument("step must be 0 or more, got " + std::to_string(step));
    if (payload.size() < capacity(dtype, geometry.size()))
        throw std::invalid_argument("a payload may take more than " +
                                    std::to_string(payload.size()) + " bytes");
    check_elements(dtype, x, geometry.size(), "x");
    check_elements(dtype, base, geometry.size(), "base");
    check_elements(dtype, residual.elements, geometry.size(), "residual");
    check_elements(dtype, left, geometry.size(), "left");
    const DefaultFloats floats;
    return encode_elements(dtype, x, base, geometry, bound, settings, payload, step, residual,
                           left);
}

void decode(Dtype dtype, Bytes payload, std::size_t n, const Settings& settings, void* y,
            const void* base) {
    check(settings);
    check_elements(dtype, y, n, "y");
    check_elements(dtype, base, n, "base");
    const DefaultFloats floats;
    decode_elements(dtype, payload, n, settings, y, base);
}

std::unique_ptr<Opened> open(Dtype dtype, Bytes payload, std::size_t n, const Settings& settings,
                             const void* base) {
    check(settings);
    check_elements(dtype, base, n, "base");
    const DefaultFloats floats;
    auto opened = open_elements(dtype, payload, n, settings, base);
    return std::make_unique<Guarded>(dtype, n, std::move(opened));
}

void accumulate(Dtype dtype, Bytes payload, std::size_t n, double weight, const Settings& settings,
                void* sums) {
    check_sums(dtype, sums, n);
    open(dtype, payload, n, settings)->add(weight, sums);
}

Comparison compare(Dtype dtype, const void* x, const void* base, std::size_t n, Asked asked,
                   const Settings& settings, const Residual& residual) {
    check(settings);
    check_elements(dtype, x, n, "x");
    check_elements(dtype, base, n, "base");
    check_elements(dtype, residual.elements, n, "residual");
    const DefaultFloats floats;
    return compare_elements(dtype, x, base, n, asked, settings, residual);
}

double value_range(Dtype dtype, const void* x, std::size_t n, const Settings& settings) {
    check(settings);
    check_elements(dtype, x, n, "x");
    const DefaultFloats floats;
    return value_range_of_elements(dtype, x, n, settings);
}

double standard_deviation(Dtype dtype, const void* x, std::size_t n, const Settings& settings) {
    check(settings);
    check_elements(dtype, x, n, "x");
    const DefaultFloats floats;
    return standard_deviation_of_elements(dtype, x, n, settings);
}

double energy(Dtype dtype, const void* x, const void* base, std::size_t n, bool masked,
              const Settings& settings) {
    check(settings);
    check_elements(dtype, x, n, "x");
    check_elements(dtype, base, n, "base");
    const DefaultFloats floats;
    return energy_of_elements(dtype, x, base, n, masked, settings);
}

}  // namespace fedsz::uniform

// What the fuzzers share: the form of their inputs, which compressors/seeds.py writes.
//
//   0, count (4 bytes), payload        is to be decoded, into that many elements
//   1, bound (8 bytes), float32 ...    is to be encoded, and decoded within that bound
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

namespace fedsz::fuzz {

class Input {
public:
    Input(const std::uint8_t* data, std::size_t size) : left_(std::as_bytes(std::span(data, size))) {}

    template <class T>
    T take() {
        T value{};
        const std::size_t size = left_.size() < sizeof value ? left_.size() : sizeof value;
        std::memcpy(&value, left_.data(), size);
        left_ = left_.subspan(size);
        return value;
    }
    std::span<const std::byte> rest() const { return left_; }
    std::vector<float> floats() const {
        std::vector<float> values(left_.size() / sizeof(float));
        std::ranges::copy(left_.first(values.size() * sizeof(float)),
                          std::as_writable_bytes(std::span(values)).begin());
        return values;
    }

private:
    std::span<const std::byte> left_;
};

// Ends the process, for the fuzzer to see, where `y` is not what the codec promises for `x`.
inline void expect_within(std::span<const float> x, std::span<const float> y, double bound,
                          double stated) {
    double largest = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
        if (!std::isfinite(x[i])) {
            if (std::memcmp(&x[i], &y[i], sizeof(float)) != 0) {
                std::abort();
            }
        } else {
            const double error = std::abs(static_cast<double>(x[i]) - static_cast<double>(y[i]));
            if (!(error <= bound)) {
                std::abort();
            }
            largest = error > largest ? error : largest;
        }
    }
    if (largest != stated) {
        std::abort();
    }
}

}  // namespace fedsz::fuzz

// What the fuzzers share. The form of their inputs, which compressors/seeds.py writes, is each
// one's own; szx's, and that of any codec with float32 arrays alone, is
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
    Input(const std::uint8_t* data, std::size_t size)
        : left_(std::as_bytes(std::span(data, size))) {}

    template <class T>
    T take() {
        T value{};
        const std::size_t size = left_.size() < sizeof value ? left_.size() : sizeof value;
        std::memcpy(&value, left_.data(), size);
        left_ = left_.subspan(size);
        return value;
    }
    std::span<const std::byte> rest() const { return left_; }
    template <class T = float>
    std::vector<T> elements() const {
        std::vector<T> values(left_.size() / sizeof(T));
        std::ranges::copy(left_.first(values.size() * sizeof(T)),
                          std::as_writable_bytes(std::span(values)).begin());
        return values;
    }

private:
    std::span<const std::byte> left_;
};

// Ends the process, for the fuzzer to see.
inline void expect(bool holds) {
    if (!holds) std::abort();
}

// Expects of `y` what the codec promises for `x`. value: what an element stands for.
template <class T, class Value>
void expect_within(const std::vector<T>& x, const std::vector<T>& y, double bound, double stated,
                   const Value& value) {
    double largest = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
        if (!std::isfinite(value(x[i]))) {
            expect(std::memcmp(&x[i], &y[i], sizeof(T)) == 0);
        } else {
            const double error = std::abs(double(value(x[i])) - double(value(y[i])));
            expect(error <= bound);
            largest = error > largest ? error : largest;
        }
    }
    expect(largest == stated);
}

}  // namespace fedsz::fuzz

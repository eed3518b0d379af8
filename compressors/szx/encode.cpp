#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "fields.hpp"
#include "szx.hpp"

namespace fedsz::szx {
namespace {

// By another thread: write() then stays within what plan() found, and says so.
constexpr const char* changed = "the array changed while it was encoded";

constexpr unsigned retries = 2;  // with a bit more each, where rounding breaks the bound

constexpr std::size_t longest_block = 1 + 4 + codes_length + 4 * block_length;

// A maximum is taken in this many variables side by side: in one, each step waits for the last.
constexpr std::size_t lanes = 8;
static_assert(block_length % lanes == 0);

using Floats = std::span<const float, block_length>;

std::size_t stored_size(std::size_t n) { return 1 + 4 * n; }

// A full block of `x`, its last element repeated where `x` ends: that changes no range, no error.
class BlockOf {
public:
    BlockOf(std::span<const float> x, std::size_t index)
        : count_(std::min(block_length, x.size() - index * block_length)),
          first_(x.data() + index * block_length) {
        if (count_ < block_length) {
            const auto end = std::copy_n(first_, count_, padded_.begin());
            std::fill(end, padded_.end(), padded_[count_ - 1]);
            first_ = padded_.data();
        }
    }
    BlockOf(const BlockOf&) = delete;
    BlockOf& operator=(const BlockOf&) = delete;

    std::size_t count() const { return count_; }
    Floats values() const { return Floats(first_, block_length); }

private:
    std::size_t count_;
    const float* first_;
    std::array<float, block_length> padded_;
};

// The bits of a float as an integer that sorts as floats do, NaN of either sign beyond infinity.
std::int32_t key_of(float value) {
    const auto bits = std::bit_cast<std::int32_t>(value);
    return bits ^ (bits >> 31 & 0x7FFFFFFF);
}

float of_key(std::int32_t key) {
    return std::bit_cast<float>(key ^ (key >> 31 & 0x7FFFFFFF));
}

struct Range {
    float low, high;
    bool finite;
};

// In integers: compilers make vectors of their minimum, which for floats would take -ffast-math.
Range range_of(Floats x) {
    std::int32_t low = key_of(x[0]), high = low;
    for (std::size_t i = 0; i < block_length; ++i) {
        const std::int32_t key = key_of(x[i]);
        low = key < low ? key : low;
        high = key > high ? key : high;
    }
    constexpr float largest = std::numeric_limits<float>::max();
    return {of_key(low), of_key(high), low >= key_of(-largest) && high <= key_of(largest)};
}

// The largest error of a block of which `bits` are kept, as the decoder will have it.
double error_of(Floats x, float middle, unsigned bits) {
    const std::uint32_t kept = ~std::uint32_t{0} << (32 - bits);
    std::array<double, block_length> errors;
    for (std::size_t i = 0; i < block_length; ++i) {
        const auto offset = std::bit_cast<std::uint32_t>(x[i] - middle) & kept;
        const float decoded = middle + std::bit_cast<float>(offset);
        errors[i] = std::abs(static_cast<double>(decoded) - static_cast<double>(x[i]));
    }
    std::array<double, lanes> worst{};
    for (std::size_t i = 0; i < block_length; i += lanes) {
        for (std::size_t j = 0; j < lanes; ++j) {
            worst[j] = errors[i + j] > worst[j] ? errors[i + j] : worst[j];
        }
    }
    return *std::max_element(worst.begin(), worst.end());
}

// The power of two at or below a double above 0; for a subnormal one, a power above it, for 0 none.
int exponent_of(double value) {
    return static_cast<int>(std::bit_cast<std::uint64_t>(value) >> 52) - 1023;
}

// Sign, exponent and as many bits of the mantissa as lie above the bound, in offsets from the middle
// of at most `radius`. Subnormal floats have no exponent of their own.
unsigned bits_needed(double radius, double bound) {
    const int mantissa = std::max(exponent_of(radius), -126) - exponent_of(bound);
    return std::min(sign_and_exponent + static_cast<unsigned>(std::max(mantissa, 0)), exact_bits);
}

struct Choice {
    Block block;
    double error;
};

Choice choose(Floats x, double bound) {
    const Block exact{0.0F, exact_bits};
    const Range range = range_of(x);
    if (!range.finite) {
        return {exact, 0.0};
    }
    const double low = range.low, high = range.high;
    const float middle = static_cast<float>((low + high) / 2);
    const double radius = std::max(high - middle, middle - low);
    if (radius <= bound) {
        return {{middle, constant_bits}, radius};
    }
    const unsigned needed = bits_needed(radius, bound);
    for (unsigned bits = needed; bits <= needed + retries && bits < exact_bits; ++bits) {
        if (const double error = error_of(x, middle, bits); error <= bound) {
            return {{middle, static_cast<std::uint8_t>(bits)}, error};
        }
    }
    return {exact, 0.0};
}

// The bits kept of each element, as integers.
Words words_of(Floats x, Block block) {
    Words words;
    if (block.bits == exact_bits) {
        std::memcpy(words.data(), x.data(), sizeof words);  // no arithmetic: NaN stays as it is
        return words;
    }
    for (std::size_t i = 0; i < block_length; ++i) {
        words[i] = std::bit_cast<std::uint32_t>(x[i] - block.middle) >> (32 - block.bits);
    }
    return words;
}

// How many leading bytes of each word, at most 3, are those of the word before; the first one's
// are compared with zero.
Words codes_of(const Words& words, unsigned bits) {
    const std::size_t width = bytes_for(bits);
    // Bytes that a word does not have do not count as equal.
    const std::uint32_t spare = 4 - static_cast<std::uint32_t>(width);
    const std::uint32_t most = std::min<std::uint32_t>(3, static_cast<std::uint32_t>(width));
    Words codes;
    Words before;
    before[0] = 0;
    std::copy_n(words.begin(), block_length - 1, before.begin() + 1);
    for (std::size_t i = 0; i < block_length; ++i) {
        const std::uint32_t change = words[i] ^ before[i];
        const std::uint32_t equal = std::uint32_t{change >> 24 == 0} + (change >> 16 == 0) +
                                    (change >> 8 == 0) + (change == 0);
        codes[i] = std::min(equal - spare, most);
    }
    return codes;
}

std::size_t size_of(Floats x, Block block, std::size_t count) {
    if (block.bits == constant_bits) {
        return sizeof block.middle;
    }
    const Words codes = codes_of(words_of(x, block), block.bits);
    std::uint32_t omitted = 0;
    for (std::size_t i = 0; i < count; ++i) {
        omitted += codes[i];
    }
    const std::size_t head = 1 + (block.bits == exact_bits ? 0 : sizeof block.middle);
    return head + (count + 3) / 4 + count * bytes_for(block.bits) - omitted;
}

// Writes a block into `out`, which takes the longest one and 4 bytes more, and returns its length.
std::size_t write_block(Floats x, Block block, std::size_t count, std::byte* out) {
    std::byte* at = out;
    if (block.bits != constant_bits) {
        *at++ = std::byte{block.bits};
    }
    if (block.bits != exact_bits) {
        std::memcpy(at, &block.middle, sizeof block.middle);
        at += sizeof block.middle;
    }
    if (block.bits == constant_bits) {
        return static_cast<std::size_t>(at - out);
    }
    const Words words = words_of(x, block);
    Words codes = codes_of(words, block.bits);
    std::fill(codes.begin() + static_cast<std::ptrdiff_t>(count), codes.end(), 0);
    for (std::size_t i = 0; i < count; i += 4) {
        *at++ = static_cast<std::byte>(codes[i] | codes[i + 1] << 2 | codes[i + 2] << 4 |
                                       codes[i + 3] << 6);
    }
    const std::size_t width = bytes_for(block.bits);
    for (std::size_t i = 0; i < count; ++i) {
        std::memcpy(at, &words[i], 4);  // what is too much, the next one overwrites
        at += width - codes[i];
    }
    return static_cast<std::size_t>(at - out);
}

}  // namespace

Plan plan(std::span<const float> x, double bound) {
    const std::size_t count = blocks_of(x.size());
    Plan plan{{}, 1 + bitmap_length(count), 0.0};
    plan.blocks.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
        const BlockOf block(x, i);
        const auto [chosen, error] = choose(block.values(), bound);
        plan.blocks.push_back(chosen);
        plan.size += size_of(block.values(), chosen, block.count());
        plan.max_error = std::max(plan.max_error, error);
    }
    if (plan.size >= stored_size(x.size())) {
        return {{}, stored_size(x.size()), 0.0};
    }
    return plan;
}

void write(std::span<const float> x, const Plan& plan, std::span<std::byte> payload) {
    if (plan.blocks.empty()) {
        payload[0] = stored;
        std::ranges::copy(std::as_bytes(x), payload.begin() + 1);
        return;
    }
    payload[0] = coded;
    const auto bitmap = payload.subspan(1, bitmap_length(plan.blocks.size()));
    auto left = payload.subspan(1 + bitmap.size());
    std::ranges::fill(bitmap, std::byte{0});
    std::array<std::byte, longest_block + 4> scratch;
    for (std::size_t i = 0; i < plan.blocks.size(); ++i) {
        const BlockOf block(x, i);
        const std::size_t size =
            write_block(block.values(), plan.blocks[i], block.count(), scratch.data());
        if (size > left.size()) {
            throw std::runtime_error(changed);
        }
        std::copy_n(scratch.begin(), size, left.begin());
        left = left.subspan(size);
        if (plan.blocks[i].bits != constant_bits) {
            bitmap[i / 8] |= std::byte{1} << (i % 8);
        }
    }
    if (!left.empty()) {
        throw std::runtime_error(changed);
    }
}

}  // namespace fedsz::szx

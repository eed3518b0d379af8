// An adaptive binary arithmetic coder, for what is few bits: models, and sparse tokens.
#pragma once

#include <bit>
#include <cstdint>

#include "bytes.hpp"
#include "memory.hpp"

namespace fedsz::uniform {

// The probability of a 1, in 2^-16, learnt from the bits seen so far: fast at first, then slower.
struct Bit {
    std::uint16_t one = 1u << 15;
    std::uint8_t seen = 0;

    void learn(bool bit) {
        const unsigned rate = seen < 4 ? ++seen + 0u : 5u;
        if (bit)
            one = std::uint16_t(one + ((65535u - one) >> rate));
        else
            one = std::uint16_t(one - (one >> rate));
        if (one < 64) one = 64;
        if (one > 65472) one = 65472;
    }
};

// Both coders keep an interval [low, high] of 32-bit numbers, and drop its leading byte once both
// ends agree on it (the carry-less coder of Mahoney's PAQ).
class BinaryEncoder {
public:
    void put(Bit& model, bool bit) {
        const std::uint32_t middle = split(low_, high_, model);
        if (bit)
            high_ = middle;
        else
            low_ = middle + 1;
        model.learn(bit);
        for (; (low_ ^ high_) < 1u << 24; low_ <<= 8, high_ = high_ << 8 | 0xFF)
            bytes_.push_back(std::uint8_t(low_ >> 24));
    }

    // Ends the code; a decoder reads zeros behind it, so that one byte above low is enough.
    const Vector<std::uint8_t>& finish() {
        if (low_ > 0) bytes_.push_back(std::uint8_t((low_ >> 24) + 1));
        return bytes_;
    }

    static std::uint32_t split(std::uint32_t low, std::uint32_t high, const Bit& model) {
        return low + std::uint32_t((std::uint64_t(high - low) * model.one) >> 16);
    }

private:
    std::uint32_t low_ = 0, high_ = 0xFFFFFFFF;
    Vector<std::uint8_t> bytes_;
};

class BinaryDecoder {
public:
    explicit BinaryDecoder(Bytes bytes) : bytes_(bytes) {
        for (int i = 0; i < 4; ++i) next();
    }

    bool get(Bit& model) {
        const std::uint32_t middle = BinaryEncoder::split(low_, high_, model);
        const bool bit = code_ <= middle;
        if (bit)
            high_ = middle;
        else
            low_ = middle + 1;
        model.learn(bit);
        for (; (low_ ^ high_) < 1u << 24; low_ <<= 8, high_ = high_ << 8 | 0xFF) next();
        return bit;
    }

    // Whether the bytes end here, as an encoder ends them.
    bool finished() const {
        const bool one_more = low_ > 0;
        return bytes_.size() == read_ - 4 + one_more && code_ == (one_more ? (low_ >> 24) + 1 : 0)
                                                                     << 24;
    }

private:
    void next() {
        code_ <<= 8;
        if (read_ < bytes_.size()) code_ |= bytes_[read_];
        ++read_;
    }

    Bytes bytes_;
    std::size_t read_ = 0;  // bytes, with the zeros behind the end
    std::uint32_t low_ = 0, high_ = 0xFFFFFFFF, code_ = 0;
};

// Numbers from 0 to 2^kWidths - 2 in Elias's gamma code: how many bits the number plus one has,
// then those below the leading one. All bits have a probability of their own, but for those further
// than kModelled below the leading one, which are as often 0 as 1.
template <unsigned kWidths, unsigned kModelled = kWidths>
class NumberModel {
public:
    void put(BinaryEncoder& coder, unsigned value) {
        const unsigned number = value + 1, width = unsigned(std::bit_width(number)) - 1;
        for (unsigned i = 0; i < width; ++i) coder.put(more_[i], true);
        if (width < kWidths - 1) coder.put(more_[width], false);
        for (unsigned bit = width; bit-- > 0;) {
            Bit even;
            coder.put(bit + kModelled < width ? even : digit_[width][bit], number >> bit & 1);
        }
    }

    unsigned get(BinaryDecoder& coder) {
        unsigned width = 0;
        while (width < kWidths - 1 && coder.get(more_[width])) ++width;
        unsigned number = 1;
        for (unsigned bit = width; bit-- > 0;) {
            Bit even;
            number = number << 1 | coder.get(bit + kModelled < width ? even : digit_[width][bit]);
        }
        return number - 1;
    }

private:
    Bit more_[kWidths], digit_[kWidths][kWidths];
};

using Number = NumberModel<10>;

}  // namespace fedsz::uniform

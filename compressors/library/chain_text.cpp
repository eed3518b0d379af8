#include "chain_text.hpp"

#include <cstdint>
#include <utility>

namespace fedsz::library {
namespace {

constexpr std::uint64_t kMostDigits = 1'000'000'000'000'000;
constexpr int kMostPower = 22;  // of ten that a double holds exactly

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Takes `start` off a text that begins with it.
bool take(std::string_view& text, std::string_view start) {
    const bool begins = text.starts_with(start);
    if (begins) text.remove_prefix(start.size());
    return begins;
}

}  // namespace

std::optional<double> decimal(std::string_view text) {
    std::uint64_t digits = 0;
    int power = 0, seen = 0;
    for (bool point = false; !text.empty() && (is_digit(text[0]) || (text[0] == '.' && !point));
         text.remove_prefix(1)) {
        if (text[0] == '.') {
            point = true;
            continue;
        }
        digits = 10 * digits + std::uint64_t(text[0] - '0');
        power -= point;
        if (++seen > 2 * kMostPower || digits >= kMostDigits) return std::nullopt;
    }
    if (seen == 0) return std::nullopt;
    if (take(text, "e")) {
        const bool below = take(text, "-");
        if (!below) take(text, "+");
        if (text.empty() || text.size() > 3) return std::nullopt;
        int exponent = 0;
        for (; !text.empty() && is_digit(text[0]); text.remove_prefix(1))
            exponent = 10 * exponent + (text[0] - '0');
        power += below ? -exponent : exponent;
    }
    if (!text.empty() || power < -kMostPower || power > kMostPower) return std::nullopt;
    double ten = 1;
    for (int i = power < 0 ? -power : power; i > 0; --i) ten *= 10;
    return power < 0 ? double(digits) / ten : double(digits) * ten;
}

std::optional<ChainText> parsed_chain(std::string_view text) {
    ChainText chain;
    if (take(text, "eigen")) {
        chain.eigen = true;
        if (take(text, ":of=")) {
            const std::size_t end = text.find('>');
            chain.history = text.substr(0, end);
            text.remove_prefix(chain.history.size());
            if (chain.history.find_first_not_of("0123456789abcdef") != chain.history.npos)
                return std::nullopt;
        }
        if (!take(text, ">")) return std::nullopt;
    }
    chain.coder = text;
    if (!take(text, "uniform")) return std::nullopt;
    if (take(text, ":effort=")) {
        if (text.empty() || !is_digit(text[0])) return std::nullopt;
        chain.effort = unsigned(text[0] - '0');
        text.remove_prefix(1);
    }
    if (!take(text, "@")) return std::nullopt;
    for (const auto& [kind, of] : {std::pair{"rel:", BoundOf::range},
                                   {"abs:", BoundOf::nothing},
                                   {"std:", BoundOf::deviation},
                                   {"step:", BoundOf::step}})
        if (take(text, kind)) {
            chain.bound_of = of;
            break;
        }
    const auto number = decimal(text);
    if (!number || !(*number > 0)) return std::nullopt;
    if (chain.bound_of == BoundOf::range && *number >= 1) return std::nullopt;
    chain.bound = *number;
    return chain;
}

}  // namespace fedsz::library

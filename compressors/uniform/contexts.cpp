#include "contexts.hpp"

#include <algorithm>
#include <cstring>

namespace fedsz::uniform {

ContextMap::ContextMap(const Contexts& contexts, std::span<const std::uint8_t> translate)
    : contexts_(contexts), translate_(translate.begin(), translate.end()), rows_(256) {
    translate_.resize(kContexts);  // whatever a byte asks for is there
    for (std::size_t i = 0; i < translate.size(); ++i) same_ = same_ && translate[i] == i;
    if (contexts.classes == 1) return;
    const std::size_t repeat = contexts.by_plane() ? 1 : contexts.geometry.planes;
    for (const std::uint8_t row : contexts.row) {
        Vector<std::uint8_t>& of_row = rows_[row];
        if (!of_row.empty()) continue;
        // Of each column class, what it means in this row; with a side, that is still the class.
        std::uint8_t meaning[256];
        for (int c = 0; c < 256; ++c) {
            const int sum = std::clamp(c + row - contexts.offset, 0, int(contexts.classes) - 1);
            meaning[c] =
                contexts.side == Side::none ? translate_[std::size_t(sum)] : std::uint8_t(sum);
        }
        of_row.resize(contexts.column.size() * repeat);
        for (std::size_t c = 0; c < contexts.column.size(); ++c)
            std::fill_n(&of_row[c * repeat], repeat, meaning[contexts.column[c]]);
    }
}

void ContextMap::fill_classes(std::size_t at, std::size_t columns,
                              std::span<std::uint8_t> out) const {
    if (contexts_.classes == 1) {
        std::ranges::fill(out, contexts_.side == Side::none ? translate_[0] : 0);
        return;
    }
    std::size_t row = at / columns, column = at % columns;
    for (std::size_t i = 0; i < out.size(); ++row, column = 0) {
        const std::size_t n = std::min(columns - column, out.size() - i);
        std::memcpy(&out[i], &rows_[contexts_.row[row]][column], n);
        i += n;
    }
}

void ContextMap::translate(std::span<std::uint8_t> contexts) const {
    if (same_) return;
    for (std::uint8_t& context : contexts) context = translate_[context];
}

void ContextMap::fill(std::size_t at, const std::uint8_t* sides,
                      std::span<std::uint8_t> out) const {
    fill_classes(at, contexts_.geometry.columns, out);
    if (contexts_.side == Side::none) return;
    const auto classes = std::uint8_t(contexts_.classes);
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = std::uint8_t(out[i] + sides[i] * classes);
    translate(out);
}

void ContextMap::fill_plane(unsigned plane, std::size_t at, const std::uint8_t* tokens,
                            std::size_t stride, std::span<std::uint8_t> out) const {
    const Geometry& geometry = contexts_.geometry;
    fill_classes(at, geometry.channels(), out);
    const std::uint8_t* left = plane % geometry.width ? tokens + (plane - 1) * stride : nullptr;
    const std::uint8_t* above =
        plane >= geometry.width ? tokens + (plane - geometry.width) * stride : nullptr;
    const auto classes = std::int16_t(contexts_.classes);
    const auto centre = std::int16_t(contexts_.centre);
    const auto add = [&](std::int16_t reach, std::int16_t middle, auto&& value_of) {
        for (std::size_t i = 0; i < out.size(); ++i) {
            const std::int16_t value = value_of(i);
            const std::int16_t kept = value < -reach ? -reach : value > reach ? reach : value;
            out[i] = std::uint8_t(out[i] + (kept + middle) * classes);
        }
    };
    constexpr std::int16_t two = kTwoReach, one = kOneReach, alone = 2 * kTwoReach + 1 + kOneReach;
    if (left && above) {
        add(two, two, [&](std::size_t i) { return std::int16_t(left[i] + above[i] - 2 * centre); });
    } else if (left || above) {
        const std::uint8_t* neighbour = left ? left : above;
        add(one, alone, [&](std::size_t i) { return std::int16_t(neighbour[i] - centre); });
    } else {
        add(one, alone, [](std::size_t) { return std::int16_t(0); });
    }
    translate(out);
}

void to_planes(const std::uint8_t* tokens, std::size_t kernels, unsigned planes,
               std::uint8_t* out) {
    for (unsigned plane = 0; plane < planes; ++plane)
        for (std::size_t i = 0; i < kernels; ++i)
            out[plane * kernels + i] = tokens[i * planes + plane];
}

void from_planes(const std::uint8_t* tokens, std::size_t kernels, unsigned planes,
                 std::uint8_t* out) {
    for (unsigned plane = 0; plane < planes; ++plane)
        for (std::size_t i = 0; i < kernels; ++i)
            out[i * planes + plane] = tokens[plane * kernels + i];
}

}  // namespace fedsz::uniform

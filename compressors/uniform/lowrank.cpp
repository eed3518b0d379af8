#include "lowrank.hpp"

#include <algorithm>

#include "side.hpp"

namespace fedsz::uniform {
namespace {

// Factors are signed; symbols are not.
Vector<std::uint8_t> to_symbols(std::span<const std::int8_t> factors) {
    Vector<std::uint8_t> symbols(factors.size());
    std::ranges::transform(factors, symbols.begin(), [](int v) { return std::uint8_t(v + 128); });
    return symbols;
}

Vector<std::int8_t> to_factors(std::span<const std::uint8_t> symbols) {
    Vector<std::int8_t> factors(symbols.size());
    std::ranges::transform(symbols, factors.begin(), [](int v) {
        if (v == 0) throw CorruptPayload("a factor is out of range");
        return std::int8_t(v - 128);
    });
    return factors;
}

// The component of each factor: the left ones row by row, the right ones one after the other.
Vector<std::uint8_t> left_components(const Factors& factors) {
    Vector<std::uint8_t> components(factors.rows * factors.rank);
    for (std::size_t i = 0; i < components.size(); ++i)
        components[i] = std::uint8_t(i % factors.rank);
    return components;
}

Vector<std::uint8_t> right_components(const Factors& factors) {
    Vector<std::uint8_t> components(factors.columns * factors.rank);
    for (std::size_t i = 0; i < components.size(); ++i)
        components[i] = std::uint8_t(i / factors.columns);
    return components;
}

}  // namespace

void Factors::predict(const Kernels& kernels, std::size_t at, std::span<std::int32_t> numbers,
                      std::uint8_t* fractions) const {
    std::size_t row = at / columns, column = at % columns;
    for (std::size_t i = 0; i < numbers.size(); ++row, column = 0) {
        const std::size_t n = std::min(columns - column, numbers.size() - i);
        kernels.predict(&left[row * rank], rank, &right[column], columns, n, scale, kFractions,
                        &numbers[i], fractions + i);
        i += n;
    }
}

double factor_bits(const Factors& factors) {
    double bits = 0;
    const auto add = [&](std::span<const std::int8_t> values,
                         const Vector<std::uint8_t>& components) {
        Vector<Counts> counts(factors.rank, Counts{});
        for (std::size_t i = 0; i < values.size(); ++i)
            ++counts[components[i]][std::uint8_t(values[i] + 128)];
        for (const Counts& of_component : counts) bits += cost_of(of_component).bits();
    };
    add(factors.left, left_components(factors));
    add(factors.right, right_components(factors));
    return bits;
}

void write(const Factors& factors, const Kernels& kernels, Writer& writer) {
    writer.put(std::uint8_t(factors.rank));
    writer.put(std::uint8_t(factors.scale));
    write_run(to_symbols(factors.left), left_components(factors).data(), factors.rank, kernels,
              writer);
    write_run(to_symbols(factors.right), right_components(factors).data(), factors.rank, kernels,
              writer);
}

Factors read_factors(Reader& reader, const Kernels& kernels, const Geometry& geometry) {
    Factors factors{reader.get<std::uint8_t>(),
                    reader.get<std::uint8_t>(),
                    geometry.rows,
                    geometry.columns,
                    {},
                    {}};
    // With more rows or columns than elements / rank, factors would be larger than what they
    // predict.
    if (factors.rank == 0 || factors.rank > kMaxRank || factors.scale > kMaxScale ||
        (geometry.rows + geometry.columns) * factors.rank > geometry.size())
        throw CorruptPayload("factors out of range");
    factors.left = to_factors(read_run(reader, factors.rows * factors.rank,
                                       left_components(factors).data(), factors.rank, kernels));
    factors.right = to_factors(read_run(reader, factors.columns * factors.rank,
                                        right_components(factors).data(), factors.rank, kernels));
    return factors;
}

}  // namespace fedsz::uniform

#include "workspace.hpp"

#include <algorithm>

#include "bound.hpp"
#include "failure.hpp"
#include "format.hpp"
#include "uniform.hpp"

namespace fedsz::library {
namespace {

constexpr std::uint64_t kFixed = std::uint64_t(1) << 16;
#ifdef FEDSZ_HAS_ZLIB
constexpr std::uint64_t kDeflate = 300'000;  // of zlib, at its usual window and memory
#else
constexpr std::uint64_t kDeflate = 0;
#endif

// What coding n elements takes beside its payload. All may be exceptions, of 16 bytes each, in
// arrays that have grown to twice what they hold; tokens, their chunks and tables come on top.
std::uint64_t coding(const Described& tensor, unsigned effort) {
    const std::uint64_t n = tensor.count, per_element = 48;
    const std::uint64_t contexts =
        std::min<std::uint64_t>(256, 12 * std::max<std::uint64_t>(n >> 10, 4));
    const std::uint64_t tables = 8 * 1024 * contexts;  // counts of 256 symbols, some times over
    std::uint64_t factors = 0;
    if (effort >= 7 && n >= 1 << 16) {
        const auto geometry = geometry_of(tensor.shape, tensor.count);
        const std::uint64_t sides = std::uint64_t(geometry.rows) + geometry.columns;
        factors = 4 * (512 * std::uint64_t(geometry.columns) + 10 * 32 * sides);
    }
    return sum(sum(product(n, per_element), tables), factors);
}

}  // namespace

std::size_t workspace_of(const fedsz_settings& settings, std::span<const fedsz_tensor> tensors) {
    std::uint64_t kept = kFixed + kDeflate, most = 0;
    for (const fedsz_tensor& given : tensors) {
        const Described tensor = described(given);
        // The payload; or its bytes that wait in a payload of several, which grows, and at the end
        // their planes and what a codec makes of them.
        kept = sum(kept, product(5, tensor.size()));
        kept += 16 * tensor.name.size() + 32 * tensor.shape.size() + 512;
        std::uint64_t here = product(2, tensor.size());
        if (tensor.dtype < kLossyCount) here = sum(here, coding(tensor, settings.effort));
        most = std::max(most, here);
    }
    const std::uint64_t all = sum(kept, most);
    if (all > std::size_t(-1) / 2) fail(FEDSZ_ERROR_MEMORY, "more than there is memory for");
    return std::size_t(all);
}

}  // namespace fedsz::library

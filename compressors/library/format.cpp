#include "format.hpp"

#include <algorithm>

#include "failure.hpp"

namespace fedsz::library {

std::string_view codec_name(std::int64_t id) {
    constexpr std::string_view low[] = {"raw",  "blosclz", "zstd",     "zlib",
                                        "gzip", "xz",      "exponents"};
    constexpr std::string_view high[] = {"sz2", "sz3", "zfp", "szx", "uniform", "fp16", "int8"};
    if (id >= 0 && id < std::ssize(low)) return low[id];
    if (id >= 16 && id < 16 + std::ssize(high)) return high[id - 16];
    return {};
}

bool codec_is_lossy(std::int64_t id) { return id >= 16; }

std::uint64_t count_of(Shape shape) {
    if (std::ranges::find(shape, 0u) != shape.end()) return 0;
    std::uint64_t count = 1;
    for (const std::uint64_t length : shape) count = product(count, length);
    return count;
}

bool is_shape(Shape shape) {
    if (shape.size() > FEDSZ_MAX_DIMENSIONS) return false;
    std::uint64_t size = 1;
    for (const std::uint64_t length : shape)
        if (length > 0) size = product(size, length);
    return size <= kMaxSize;
}

unsigned utf8_length(Octets bytes) {
    const std::uint8_t first = bytes[0];
    if (first < 0x80) return 1;
    if (first < 0xC2 || first > 0xF4) return 0;
    const unsigned length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
    if (bytes.size() < length) return 0;
    // The first byte that follows decides whether a form is too long, a surrogate or too large.
    const std::uint8_t low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
    const std::uint8_t high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    if (bytes[1] < low || bytes[1] > high) return 0;
    for (unsigned i = 2; i < length; ++i)
        if ((bytes[i] & 0xC0) != 0x80) return 0;
    return length;
}

bool is_utf8(Octets bytes) {
    while (!bytes.empty()) {
        const unsigned length = utf8_length(bytes);
        if (length == 0) return false;
        bytes = bytes.subspan(length);
    }
    return true;
}

std::uint64_t characters(Octets utf8) {
    return std::uint64_t(
        std::ranges::count_if(utf8, [](std::uint8_t byte) { return (byte & 0xC0) != 0x80; }));
}

Described described(const fedsz_tensor& tensor) {
    if (tensor.name_length > 0) require(tensor.name, "a tensor's name");
    if (tensor.dimensions > 0) require(tensor.shape, "a tensor's shape");
    const std::string_view name(tensor.name_length ? tensor.name : "", tensor.name_length);
    if (name.size() > std::numeric_limits<std::uint32_t>::max() || !is_utf8(as_octets(name)))
        fail(FEDSZ_ERROR_ARGUMENT, "a tensor's name is not text: ", name);
    if (unsigned(tensor.dtype) >= kDtypeCount)
        fail(FEDSZ_ERROR_ARGUMENT, "no dtype ", std::int64_t(tensor.dtype), " of '", name, "'");
    const Shape shape(tensor.dimensions ? tensor.shape : nullptr, tensor.dimensions);
    const std::uint64_t count = is_shape(shape) ? count_of(shape) : kMaxSize + 1;
    const std::size_t most = std::numeric_limits<std::ptrdiff_t>::max();
    if (count > kMaxSize || count > most / kDtypes[tensor.dtype].size ||
        std::ranges::any_of(shape, [](std::uint64_t n) { return n >= kMaxDimension; }))
        fail(FEDSZ_ERROR_ARGUMENT, "a shape of '", name, "' that no array has");
    return {name, unsigned(tensor.dtype), shape, std::size_t(count)};
}

void check_elements(const void* elements, const Described& tensor, const char* what) {
    if (tensor.size() == 0) return;
    require(elements, what);
    const std::size_t wanted = std::min<std::size_t>(tensor.type().size, 8);
    if (const auto off = reinterpret_cast<std::uintptr_t>(elements) % wanted; off != 0)
        fail(FEDSZ_ERROR_ARGUMENT, what, " must be aligned to ", std::uint64_t(wanted),
             " bytes, and is ", std::uint64_t(off), " off");
}

}  // namespace fedsz::library

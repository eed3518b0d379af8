// What a stream says of itself: docs/format.md, "Layout".
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>

#include "fedsz.h"
#include "memory.hpp"
#include "xxh3.hpp"

namespace fedsz::library {

using stream::Digest;

using Octets = std::span<const std::uint8_t>;
using Shape = std::span<const std::uint64_t>;

inline constexpr std::uint8_t kMagic[] = {0x89, 'F', 'S', 'Z', '\r', '\n', 0x1A, '\n'};
inline constexpr std::size_t kPrefix = 20;
inline constexpr unsigned kValuesVersion = 1, kDifferencesVersion = 2, kChainsVersion = 3;
inline constexpr std::uint64_t kMaxDimension = std::uint64_t(1) << 48;
inline constexpr std::uint64_t kMaxSize = std::uint64_t(1) << 56;  // of dimensions but those of 0
inline constexpr std::uint64_t kFreeTensors = 1 << 15, kTensorHeaderBytes = 192;
inline constexpr std::uint64_t kMostChains = 256, kMostText = 1000;
// Transforms that headers may have beside those of fedsz_transform: this library decodes none.
inline constexpr unsigned kChain = 3, kChainDifference = 4;

// By id: name and bytes of an element; whether streams may have it lossy, and what sort of bits it
// has.
struct DtypeInfo {
    std::string_view name;
    std::uint8_t size;
    bool lossy, floating, complex;
};
inline constexpr DtypeInfo kDtypes[] = {
    {"float32", 4, true, true, false},         {"float64", 8, true, true, false},
    {"float16", 2, true, true, false},         {"bfloat16", 2, true, true, false},
    {"bool", 1, false, false, false},          {"int8", 1, false, false, false},
    {"int16", 2, false, false, false},         {"int32", 4, false, false, false},
    {"int64", 8, false, false, false},         {"uint8", 1, false, false, false},
    {"uint16", 2, false, false, false},        {"uint32", 4, false, false, false},
    {"uint64", 8, false, false, false},        {"complex64", 8, false, false, true},
    {"complex128", 16, false, false, true},    {"float8_e4m3fn", 1, false, true, false},
    {"float8_e5m2", 1, false, true, false},    {"float8_e4m3fnuz", 1, false, true, false},
    {"float8_e5m2fnuz", 1, false, true, false}};
// Dtypes that this build makes lossy.
#ifdef FEDSZ_FLOAT32_ONLY
inline constexpr unsigned kLossyCount = 1;
#else
inline constexpr unsigned kLossyCount = 4;
#endif
inline constexpr unsigned kDtypeCount = std::size(kDtypes);

enum Codec : std::uint8_t { kRaw = 0, kZstd = 2, kZlib = 3, kGzip = 4, kUniform = 20 };

// The name of a codec by its id; empty for one that there is not. lossy: whether it may be.
std::string_view codec_name(std::int64_t id);
bool codec_is_lossy(std::int64_t id);

// Numbers that stop at the largest instead of wrapping around.
inline std::uint64_t sum(std::uint64_t a, std::uint64_t b) {
    return a > std::numeric_limits<std::uint64_t>::max() - b
               ? std::numeric_limits<std::uint64_t>::max()
               : a + b;
}
inline std::uint64_t product(std::uint64_t a, std::uint64_t b) {
    return a != 0 && b > std::numeric_limits<std::uint64_t>::max() / a
               ? std::numeric_limits<std::uint64_t>::max()
               : a * b;
}

// The number of elements of a shape; whether there are arrays of that shape.
std::uint64_t count_of(Shape shape);
bool is_shape(Shape shape);

// Bytes of the character that bytes begin with, in UTF-8 without surrogates; 0 if there is none.
unsigned utf8_length(Octets bytes);
// Whether all of them are such; how many characters such have.
bool is_utf8(Octets bytes);
std::uint64_t characters(Octets utf8);

inline std::string_view as_text(Octets bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
inline Octets as_octets(std::string_view text) {
    return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

// CRC-32 as zlib has it, of bytes behind others of a CRC.
std::uint32_t crc32(Octets bytes, std::uint32_t before = 0);

// A tensor that a caller has described, checked.
struct Described {
    std::string_view name;
    unsigned dtype;
    Shape shape;
    std::size_t count;  // of elements

    const DtypeInfo& type() const { return kDtypes[dtype]; }
    std::size_t size() const { return count * type().size; }
};

// Throws Failure for what no stream holds.
Described described(const fedsz_tensor& tensor);

// Throws Failure where elements of a dtype may not lie.
void check_elements(const void* elements, const Described& tensor, const char* what);

}  // namespace fedsz::library

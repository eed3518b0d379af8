// zlib streams (RFC 1950), of headers and of lossless payloads; and gzip's (RFC 1952).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "arena.hpp"
#include "format.hpp"

namespace fedsz::library {

// A header, as zlib compresses it at level 9. A build without zlib stores it: that is longer, and
// as valid.
Buffer deflated_header(Octets bytes);

enum class Wrapper { zlib, gzip };

#ifdef FEDSZ_HAS_ZLIB
// A lossless payload, as Python's zlib.compressobj makes it; nothing if it would take `room` or
// more.
std::optional<Buffer> deflated(Octets bytes, Wrapper wrapper, int level, std::size_t room);

// Fills `out` from a stream that holds just as much and ends where the bytes do; false for another.
bool inflate_into(Octets stream, Wrapper wrapper, std::span<std::uint8_t> out);

// What a stream holds, up to most + 1 bytes. ends: whether it ends where the bytes do. Throws
// Failure for one that is none.
Vector<std::uint8_t> inflated(Octets stream, std::uint64_t most, bool& ends);
#endif

}  // namespace fedsz::library

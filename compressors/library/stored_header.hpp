// What a stream begins with: its prefix, and the header that is deflated behind it.
#pragma once

#include <cstdint>

#include "header.hpp"

namespace fedsz::library {

struct StoredHeader {
    // Throws Failure for what is no stream, or whose header is damaged or larger than the limits.
    StoredHeader(Octets stream, const fedsz_limits& limits);

    Vector<std::uint8_t> inflated;
    unsigned version;
    std::uint64_t end;  // where payloads begin
    Allowance allowance;
};

}  // namespace fedsz::library

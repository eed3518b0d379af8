#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace fedsz {

// Throws std::invalid_argument where no T may lie: compilers count on that none does, even for a
// machine that would not mind.
template <class T>
void check_aligned(const void* address, const char* what) {
    if (const auto off = reinterpret_cast<std::uintptr_t>(address) % alignof(T); off != 0)
        throw std::invalid_argument(std::string(what) + " must be aligned to " +
                                    std::to_string(alignof(T)) + " bytes, and is " +
                                    std::to_string(off) + " off");
}

}  // namespace fedsz

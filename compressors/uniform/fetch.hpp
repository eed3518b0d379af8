// Asking caches for what is needed soon.
#pragma once

#include <cstddef>

namespace fedsz::uniform {

// Asks for n elements, to read or to write them. Addresses behind an array's end do no harm. On Intel
// this matters: what hardware fetches by itself ends with a page, which is 1024 elements.
template <bool Write = false, class T>
inline void fetch(const T* x, std::size_t n) {
    constexpr std::size_t line = 64;
    const auto* bytes = reinterpret_cast<const char*>(x);
    for (std::size_t at = 0; at < n * sizeof(T); at += line) __builtin_prefetch(bytes + at, Write);
}

}  // namespace fedsz::uniform

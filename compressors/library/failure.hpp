// What goes wrong, as C sees it: a status, a place in the stream, and one line.
#pragma once

#include <cstdint>
#include <exception>
#include <initializer_list>
#include <string_view>

#include "fedsz.h"

namespace fedsz::library {

// A piece of a message: text or a number.
class Part {
public:
    Part(std::string_view text) : text_(text.data()), value_(text.size()) {}
    Part(const char* text) : Part(std::string_view(text)) {}
    Part(std::uint64_t number) : value_(number) {}
    Part(std::int64_t number)
        : value_(number < 0 ? 0 - std::uint64_t(number) : std::uint64_t(number)),
          negative_(number < 0) {}

private:
    friend class Line;
    const char* text_ = nullptr;
    std::uint64_t value_;  // the number, or the length of the text
    bool negative_ = false;
};

class Failure final : public std::exception {
public:
    // Takes no memory: there may be none.
    Failure(fedsz_status status, std::uint64_t offset, std::initializer_list<Part> parts);
    const char* what() const noexcept override { return error.message; }

    fedsz_error error;
};

[[noreturn]] void fail_with(fedsz_status status, std::uint64_t offset,
                            std::initializer_list<Part> parts);

template <class... Parts>
[[noreturn]] void fail(fedsz_status status, const Parts&... parts) {
    fail_with(status, 0, {Part(parts)...});
}

template <class... Parts>
[[noreturn]] void fail_at(std::uint64_t offset, fedsz_status status, const Parts&... parts) {
    fail_with(status, offset, {Part(parts)...});
}

// Puts the exception that is being handled into *error, unless that is null; returns its status.
fedsz_status report(fedsz_error* error) noexcept;

// Calls task(); an exception becomes a status.
template <class Task>
fedsz_status guarded(fedsz_error* error, const Task& task) noexcept {
    try {
        task();
    } catch (...) {
        return report(error);
    }
    if (error) *error = fedsz_error{FEDSZ_OK, 0, {}};
    return FEDSZ_OK;
}

inline void require(const void* pointer, const char* what) {
    if (!pointer) fail(FEDSZ_ERROR_ARGUMENT, what, " must not be NULL");
}

}  // namespace fedsz::library

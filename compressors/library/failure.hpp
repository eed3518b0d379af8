// What goes wrong, as C sees it: a status, a place in the stream, and one line.
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <string_view>

#include "fedsz.h"

namespace fedsz::library {

// A line of fixed length, which takes no memory: there may be none.
class Line {
public:
    Line(char* text, std::size_t size) : text_(text), size_(size) { text_[0] = 0; }

    Line& operator<<(std::string_view more) {
        for (const char c : more) {
            if (used_ + 1 == size_) break;
            // Names are whatever the bytes say, and a message is one line.
            text_[used_++] = static_cast<unsigned char>(c) < ' ' || c == 0x7F ? '?' : c;
        }
        text_[used_] = 0;
        return *this;
    }
    Line& operator<<(std::uint64_t number) {
        char digits[20];
        const auto end = std::to_chars(digits, digits + sizeof digits, number).ptr;
        return *this << std::string_view(digits, std::size_t(end - digits));
    }
    Line& operator<<(std::int64_t number) {
        if (number < 0) return *this << "-" << (0 - std::uint64_t(number));
        return *this << std::uint64_t(number);
    }

private:
    char* text_;
    std::size_t size_, used_ = 0;
};

class Failure final : public std::exception {
public:
    template <class... Parts>
    explicit Failure(fedsz_status status, std::uint64_t offset, const Parts&... parts)
        : error{status, offset, {}} {
        Line line(error.message, sizeof error.message);
        (line << ... << parts);
    }
    const char* what() const noexcept override { return error.message; }

    fedsz_error error;
};

template <class... Parts>
[[noreturn]] void fail(fedsz_status status, const Parts&... parts) {
    throw Failure(status, 0, parts...);
}

template <class... Parts>
[[noreturn]] void fail_at(std::uint64_t offset, fedsz_status status, const Parts&... parts) {
    throw Failure(status, offset, parts...);
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

#include "failure.hpp"

#include <charconv>
#include <cstring>
#include <new>
#include <stdexcept>

#include "corrupt.hpp"
#include "format.hpp"

namespace fedsz::library {

// A line of UTF-8 in a buffer, cut off where the next character does not fit.
class Line {
public:
    Line(char* text, std::size_t size) : text_(text), left_(size - 1) { *text_ = 0; }

    void add(const Part& part) {
        if (part.text_) return add(std::string_view(part.text_, std::size_t(part.value_)));
        char digits[20];
        const auto end = std::to_chars(digits, digits + sizeof digits, part.value_).ptr;
        if (part.negative_) add(std::string_view("-"));
        add(std::string_view(digits, std::size_t(end - digits)));
    }

private:
    void add(std::string_view more) {
        // Names are whatever the bytes say, and a message is one line of text.
        for (Octets bytes = as_octets(more); !bytes.empty();) {
            const unsigned length = utf8_length(bytes);
            const bool shown = length > 1 || (length == 1 && bytes[0] >= ' ' && bytes[0] != 0x7F);
            const std::size_t room = shown ? length : 1;
            if (room > left_) {
                left_ = 0;
                return;
            }
            std::memcpy(text_, shown ? more.data() + (more.size() - bytes.size()) : "?", room);
            text_ += room;
            left_ -= room;
            *text_ = 0;
            bytes = bytes.subspan(room);
        }
    }

    char* text_;
    std::size_t left_;  // beside the 0 at the end
};

namespace {

fedsz_status state(fedsz_error* error, fedsz_status status, std::string_view what) {
    if (error) *error = Failure(status, 0, {what}).error;
    return status;
}

}  // namespace

Failure::Failure(fedsz_status status, std::uint64_t offset, std::initializer_list<Part> parts)
    : error{status, offset, {}} {
    Line line(error.message, sizeof error.message);
    for (const Part& part : parts) line.add(part);
}

void fail_with(fedsz_status status, std::uint64_t offset, std::initializer_list<Part> parts) {
    throw Failure(status, offset, parts);
}

fedsz_status report(fedsz_error* error) noexcept {
    try {
        throw;
    } catch (const Failure& failure) {
        if (error) *error = failure.error;
        return failure.error.status;
    } catch (const CorruptPayload& corrupt) {
        return state(error, FEDSZ_ERROR_CORRUPT, corrupt.what());
    } catch (const std::invalid_argument& invalid) {
        return state(error, FEDSZ_ERROR_ARGUMENT, invalid.what());
    } catch (...) {
        // std::bad_alloc, and std::length_error of arrays that no memory could hold.
        return state(error, FEDSZ_ERROR_MEMORY, "there is no more memory");
    }
}

}  // namespace fedsz::library

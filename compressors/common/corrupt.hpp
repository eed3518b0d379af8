#pragma once

#include <stdexcept>

namespace fedsz {

// A payload that the codec's encoder did not write, or that changed since.
class CorruptPayload : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

}  // namespace fedsz

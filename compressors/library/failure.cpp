#include "failure.hpp"

#include <new>
#include <stdexcept>

#include "corrupt.hpp"

namespace fedsz::library {
namespace {

fedsz_status state(fedsz_error* error, fedsz_status status, std::string_view what) {
    if (error) {
        *error = fedsz_error{status, 0, {}};
        Line(error->message, sizeof error->message) << what;
    }
    return status;
}

}  // namespace

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

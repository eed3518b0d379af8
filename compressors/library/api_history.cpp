// fedsz.h: what broadcasts have shown, and how far a model is from the last one.
#include "failure.hpp"
#include "format.hpp"
#include "history.hpp"
#include "uniform.hpp"

using namespace fedsz;
using namespace fedsz::library;

fedsz_status fedsz_history_create(fedsz_history** history, fedsz_error* error) {
    return guarded(error, [&] {
        require(history, "history");
        *history = nullptr;
        *history = reinterpret_cast<fedsz_history*>(new History());
    });
}

void fedsz_history_destroy(fedsz_history* history) { delete reinterpret_cast<History*>(history); }

fedsz_status fedsz_history_advance(fedsz_history* history, const fedsz_reference* before,
                                   const fedsz_reference* now, fedsz_error* error) {
    return guarded(error, [&] {
        require(history, "history");
        require(before, "before");
        require(now, "now");
        reinterpret_cast<History*>(history)->advance(*reinterpret_cast<const Reference*>(before),
                                                     *reinterpret_cast<const Reference*>(now));
    });
}

int fedsz_history_digest(const fedsz_history* history, uint8_t digest[16]) {
    if (!history || !reinterpret_cast<const History*>(history)->digest()) return 0;
    if (digest) std::ranges::copy(*reinterpret_cast<const History*>(history)->digest(), digest);
    return 1;
}

fedsz_status fedsz_energy(fedsz_dtype dtype, const void* x, const void* base, size_t count,
                          double* energy, fedsz_error* error) {
    return guarded(error, [&] {
        require(energy, "energy");
        if (unsigned(dtype) >= kLossyCount)
            fail(FEDSZ_ERROR_ARGUMENT, "an energy is of tensors that may be lossy");
        if (count > 0) require(x, "x"), require(base, "base");
        *energy = uniform::energy(uniform::Dtype(dtype), x, base, count, false);
    });
}

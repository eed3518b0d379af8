#include "feedback.hpp"

#include <cstring>

#include "decoding.hpp"
#include "failure.hpp"

namespace fedsz::library {

std::optional<Coded> encode_fed(const Task& task, const void* x, const Fed& fed) {
    if (is_wide(task.dtype)) {
        auto coded = encode_fed_back(task, x, fed.residual, fed.weight, fed.left);
        // Stored where they lie, elements leave nothing: the coder has written that, too.
        return coded;
    }
    auto coded = encode_fed_back(task, x, fed.residual, fed.weight, nullptr);
    if (!coded || !fed.left) return coded;
#ifdef FEDSZ_HAS_DECODER
    const Octets payload(coded->payload.data(), coded->payload.size());
    const void* const base = coded->transform == FEDSZ_DIFFERENCE ? task.base : nullptr;
    const Buffer decoded(task.size());
    decode_uniform(payload, task.dtype, task.n, base, decoded.data());
    leave_narrow(task.dtype, x, fed.residual, fed.weight, decoded.data(), task.n, fed.left);
    return coded;
#else
    fail(FEDSZ_ERROR_UNAVAILABLE, "feedback in half precision needs a library with a decoder");
#endif
}

Buffer exact_with(Dtype dtype, const void* x, const Fed& fed, std::size_t n) {
    Buffer meant;
    if (fed.residual) meant = with_residual(dtype, x, fed.residual, fed.weight, n);
    if (fed.left && fed.residual && !is_wide(dtype))
        leave_narrow(dtype, x, fed.residual, fed.weight, meant.data(), n, fed.left);
    else if (fed.left)
        std::memset(fed.left, 0, n * uniform::size_of(dtype));
    return meant;
}

}  // namespace fedsz::library

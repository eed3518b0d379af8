// fedsz.h: what both directions share.
#include "failure.hpp"
#include "format.hpp"
#include "reference.hpp"

using namespace fedsz;
using namespace fedsz::library;

#define FEDSZ_TEXT_OF(x) #x
#define FEDSZ_TEXT(x) FEDSZ_TEXT_OF(x)

const char* fedsz_version(void) {
    return FEDSZ_TEXT(FEDSZ_VERSION_MAJOR) "." FEDSZ_TEXT(FEDSZ_VERSION_MINOR) "." FEDSZ_TEXT(
        FEDSZ_VERSION_PATCH);
}

const char* fedsz_features(void) {
    return "encoder"
#ifdef FEDSZ_HAS_DECODER
           " decoder"
#endif
#ifndef FEDSZ_NO_THREADS
           " threads"
#endif
#ifdef FEDSZ_HAS_ZLIB
           " zlib"
#endif
#ifdef FEDSZ_HAS_ZSTD
           " zstd"
#endif
        ;
}

size_t fedsz_dtype_size(fedsz_dtype dtype) {
    return unsigned(dtype) < kDtypeCount ? kDtypes[dtype].size : 0;
}

size_t fedsz_tensor_size(const fedsz_tensor* tensor) {
    size_t size = SIZE_MAX;
    guarded(nullptr, [&] {
        require(tensor, "tensor");
        size = described(*tensor).size();
    });
    return size;
}

fedsz_status fedsz_reference_create(const fedsz_tensor* tensors, const void* const* data,
                                    size_t count, fedsz_reference** reference, fedsz_error* error) {
    return guarded(error, [&] {
        require(reference, "reference");
        *reference = nullptr;
        if (count > 0) require(tensors, "tensors"), require(data, "data");
        *reference = reinterpret_cast<fedsz_reference*>(new Reference(tensors, data, count));
    });
}

void fedsz_reference_destroy(fedsz_reference* reference) {
    delete reinterpret_cast<Reference*>(reference);
}

void fedsz_reference_digest(const fedsz_reference* reference, uint8_t digest[16]) {
    if (reference && digest)
        std::ranges::copy(reinterpret_cast<const Reference*>(reference)->digest(), digest);
}

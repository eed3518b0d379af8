#include "reader.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "bits.hpp"
#include "bound.hpp"
#include "decoding.hpp"
#include "failure.hpp"
#include "lossless.hpp"
#include "numbers.hpp"

namespace fedsz::library {
namespace {

// y = values, or base + values, as elements of a dtype; what is finite stays finite.
void place(Dtype dtype, const void* base, const float* values, std::size_t n, void* y) {
    visit(dtype, [&]<class E>(E) {
        using C = typename E::Compute;
        auto* to = static_cast<typename E::Stored*>(y);
        if constexpr (sizeof(typename E::Stored) > 2) {
            const auto* from = static_cast<const C*>(base);
            for (std::size_t i = 0; i < n; ++i) {
                const C value = C(values[i]);
                C whole = from ? from[i] + value : value;
                if (std::isinf(whole) && std::isfinite(value) && std::isfinite(from[i]))
                    whole = std::copysign(std::numeric_limits<C>::max(), whole);
                to[i] = whole;
            }
        } else {
            if (base) return move(dtype, base, values, n, y);
            for (std::size_t i = 0; i < n; ++i) to[i] = narrowed<E>(values[i]);
        }
    });
}

}  // namespace

Reader::Reader(Octets stream, const fedsz_limits& limits)
    : stream_(stream),
      stored_(stream, limits),
      header_(stored_.inflated, stored_.version, stored_.allowance) {
    const std::uint64_t have = stream.size() - stored_.end, needed = header_.payload_bytes();
    if (have < needed)
        fail_at(stream.size(), FEDSZ_ERROR_TRUNCATED, "payloads need ", needed, " bytes, have ",
                have);
    if (have > needed)
        fail_at(stored_.end + needed, FEDSZ_ERROR_CORRUPT, have - needed, " bytes after the end");
    checked_.resize(header_.payloads().size());
    unpacked_.resize(header_.payloads().size());
}

fedsz_info Reader::info(std::size_t index) const {
    if (index >= header_.tensors().size())
        fail(FEDSZ_ERROR_ARGUMENT, "no tensor ", std::uint64_t(index), "; there are ",
             std::uint64_t(header_.tensors().size()));
    const TensorRecord& tensor = header_.tensors()[index];
    const PayloadRecord& payload = header_.payloads()[tensor.payload];
    const std::string_view codec = codec_name(payload.codec);
    if (codec.empty())
        fail_at(offset_of(payload), FEDSZ_ERROR_UNSUPPORTED, "unknown codec ", payload.codec);
    const Shape shape = header_.shape_of(tensor);
    return {{as_text(tensor.name).data(), tensor.name.size(), fedsz_dtype(tensor.dtype),
             shape.data(), shape.size()},
            std::size_t(tensor.size),
            codec.data(),
            codec.size(),
            fedsz_transform(payload.transform),
            payload.lossy,
            payload.bound,
            tensor.payload,
            std::size_t(offset_of(payload)),
            std::size_t(payload.size)};
}

Octets Reader::checked(std::size_t i) {
    const PayloadRecord& payload = header_.payloads()[i];
    const Octets bytes =
        stream_.subspan(std::size_t(offset_of(payload)), std::size_t(payload.size));
    if (!checked_[i] && std::int64_t(crc32(bytes)) != payload.checksum)
        fail_at(offset_of(payload), FEDSZ_ERROR_CHECKSUM, "checksum of payload ", std::uint64_t(i));
    checked_[i] = 1;
    return bytes;
}

const void* Reader::base_of(const TensorRecord& tensor, const Reference* reference) const {
    const void* const base =
        reference->find(as_text(tensor.name), tensor.dtype, header_.shape_of(tensor));
    if (!base)
        fail(FEDSZ_ERROR_CORRUPT, "a difference from '", as_text(tensor.name),
             "', which the reference lacks");
    return base;
}

void Reader::decode(std::size_t index, const Reference* reference, void* elements) {
    const TensorRecord& tensor = header_.tensors()[index];
    const PayloadRecord& payload = header_.payloads()[tensor.payload];
    if (header_.reference()) {
        if (!reference)
            fail(FEDSZ_ERROR_REFERENCE, "the stream holds differences from a model: pass it");
        if (*header_.reference() != reference->digest())
            fail(FEDSZ_ERROR_REFERENCE, "the stream's differences refer to another model");
    }
    const Octets bytes = checked(tensor.payload);
    try {
        const std::string_view codec = codec_name(payload.codec);
        if (codec.empty()) fail(FEDSZ_ERROR_UNSUPPORTED, "unknown codec ", payload.codec);
        if (!payload.lossy) {
            if (codec_is_lossy(payload.codec))
                fail(FEDSZ_ERROR_CORRUPT, "codec '", codec, "' in a lossless payload");
            return decode_lossless(index, tensor.payload, bytes, reference,
                                   static_cast<std::uint8_t*>(elements));
        }
        const bool differs = payload.transform == FEDSZ_DIFFERENCE;
        decode_lossy(tensor, payload, bytes, differs ? base_of(tensor, reference) : nullptr,
                     elements);
    } catch (const Failure& failure) {
        fail_at(offset_of(payload), failure.error.status, failure.what());
    } catch (const CorruptPayload& corrupt) {
        fail_at(offset_of(payload), FEDSZ_ERROR_CORRUPT,
                "uniform payload does not decode: ", corrupt.what());
    }
}

void Reader::decode_lossy(const TensorRecord& tensor, const PayloadRecord& payload, Octets bytes,
                          const void* base, void* elements) const {
    const auto dtype = Dtype(tensor.dtype);
    const auto n = std::size_t(tensor.count);
    if (payload.codec == kUniform) return decode_uniform(bytes, dtype, n, base, elements);
    if (codec_is_lossy(payload.codec))
        fail(FEDSZ_ERROR_UNAVAILABLE, "codec '", codec_name(payload.codec),
             "' is not in this library");
    Vector<float> values(n);
    unpack(bytes, payload.codec,
           {reinterpret_cast<std::uint8_t*>(values.data()), n * sizeof(float)});
    place(dtype, base, values.data(), n, elements);
}

void Reader::decode_lossless(std::size_t index, std::size_t number, Octets bytes,
                             const Reference* reference, std::uint8_t* elements) {
    const PayloadRecord& payload = header_.payloads()[number];
    const TensorRecord& tensor = header_.tensors()[index];
    const DtypeInfo& type = kDtypes[tensor.dtype];
    const auto size = std::size_t(tensor.size);
    if (payload.count == 1 && payload.transform == FEDSZ_VALUES) {
        unpack(bytes, payload.codec, {elements, size});
    } else {
        const void* const base =
            payload.transform == FEDSZ_BITS ? base_of(tensor, reference) : nullptr;
        const Octets all = unpacked(number, bytes);
        std::size_t first = 0;  // bytes of the tensors before it
        for (const std::uint32_t member : header_.members_of(payload)) {
            if (member == index) break;
            first += std::size_t(header_.tensors()[member].size);
        }
        if (base)
            stream::move_bits({type.size, std::size_t(tensor.count), type.floating},
                              all.data() + first / type.size, all.size() / type.size,
                              static_cast<const std::uint8_t*>(base), elements);
        else if (size > 0)
            std::memcpy(elements, &all[first], size);
    }
    if (tensor.dtype == FEDSZ_BOOL &&
        std::any_of(elements, elements + size, [](auto b) { return b > 1; }))
        fail(FEDSZ_ERROR_CORRUPT, "a bool of '", as_text(tensor.name), "' is neither 0 nor 1");
}

Octets Reader::unpacked(std::size_t number, Octets bytes) {
    if (!unpacked_[number].data()) {
        const PayloadRecord& payload = header_.payloads()[number];
        std::size_t size = 0;
        for (const std::uint32_t member : header_.members_of(payload))
            size += std::size_t(header_.tensors()[member].size);
        Buffer all(size);
        unpack(bytes, payload.codec, all.span());
        unpacked_[number] = std::move(all);
    }
    return unpacked_[number].span();
}

}  // namespace fedsz::library

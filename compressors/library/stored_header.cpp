#include "stored_header.hpp"

#include <algorithm>

#include "deflate.hpp"
#include "failure.hpp"

namespace fedsz::library {
namespace {

std::uint64_t little(Octets bytes) {
    std::uint64_t value = 0;
    for (std::size_t i = bytes.size(); i-- > 0;) value = value << 8 | bytes[i];
    return value;
}

}  // namespace

StoredHeader::StoredHeader(Octets stream, const fedsz_limits& limits) {
    std::uint64_t most = limits.tensors, header_bytes = limits.header_bytes;
    if (limits.tensor_bytes) {
        most = std::min(most,
                        std::max<std::uint64_t>(kFreeTensors, stream.size() / limits.tensor_bytes));
        header_bytes = std::min(header_bytes, product(kTensorHeaderBytes, most));
    }
    allowance = {most, std::max(limits.decoded_bytes, product(limits.expansion, stream.size()))};

    const Octets magic = stream.first(std::min(stream.size(), sizeof kMagic));
    if (!std::ranges::equal(magic, Octets(kMagic).first(magic.size())))
        fail(FEDSZ_ERROR_CORRUPT, "not a fedsz stream: wrong magic");
    if (stream.size() < kPrefix)
        fail_at(stream.size(), FEDSZ_ERROR_TRUNCATED, "the stream ends within its header");
    const std::uint64_t number = little(stream.subspan(8, 2)), flags = little(stream.subspan(10, 2));
    const std::uint64_t length = little(stream.subspan(12, 4));
    if (number == kChainsVersion)
        fail_at(8, FEDSZ_ERROR_UNSUPPORTED,
                "stream version 3 holds chains of methods; this library reads 1, 2");
    if (number < kValuesVersion || number > kDifferencesVersion)
        fail_at(8, FEDSZ_ERROR_UNSUPPORTED, "stream version ", number,
                "; this library reads 1, 2");
    if (flags) fail_at(10, FEDSZ_ERROR_UNSUPPORTED, "unknown flags ", flags);
    if (length > header_bytes)
        fail_at(12, FEDSZ_ERROR_LIMIT, "header of ", length, " bytes; the limit is ", header_bytes);
    if (stream.size() - kPrefix < length)
        fail_at(stream.size(), FEDSZ_ERROR_TRUNCATED, "the stream ends within its header");
    const Octets header = stream.subspan(kPrefix, std::size_t(length));
    if (crc32(header, crc32(stream.first(16))) != little(stream.subspan(16, 4)))
        fail_at(16, FEDSZ_ERROR_CHECKSUM, "checksum of the header");
    version = unsigned(number);
    end = kPrefix + length;

    bool ends;
    inflated = library::inflated(header, header_bytes, ends);
    if (inflated.size() > header_bytes)
        fail_at(kPrefix, FEDSZ_ERROR_LIMIT, "header inflates beyond ", header_bytes, " bytes");
    if (!ends)
        fail_at(kPrefix, FEDSZ_ERROR_CORRUPT,
                "the header's zlib stream does not end where the header does");
}

}  // namespace fedsz::library

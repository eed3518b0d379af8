#include "header.hpp"

#include <algorithm>
#include <cmath>
#include <functional>

#include "failure.hpp"
#include "msgpack.hpp"

namespace fedsz::library {
namespace {

template <class... Parts>
[[noreturn]] void refuse(fedsz_status status, const Parts&... parts) {
    fail_at(kPrefix, status, parts...);
}

// The length of the array that a piece of MessagePack begins with; 0 for another.
std::uint64_t array_length(Octets section) {
    const unsigned first = section[0];
    if (first != 0xDC && first != 0xDD && (first & 0xF0) != 0x90) return 0;
    return Unpacker(section).array();
}

}  // namespace

Header::Header(Octets inflated, unsigned version, const Allowance& allowance) {
    Octets tensors, payloads, chains;
    read_sections(inflated, allowance.tensors, tensors, payloads, chains);
    read_tensors(tensors);
    read_payloads(payloads);
    read_chains(chains);
    check(version, allowance.decoded_bytes);
    for (PayloadRecord& payload : payloads_) {
        payload.offset = payload_bytes_;
        payload_bytes_ = sum(payload_bytes_, payload.size);
    }
}

void Header::read_sections(Octets inflated, std::uint64_t most, Octets& tensors, Octets& payloads,
                           Octets& chains) {
    static constexpr std::uint8_t none[] = {0x90};
    bool seen[3] = {};
    chains = none;
    Unpacker unpacker(inflated);
    for (std::uint64_t left = unpacker.map(); left > 0; --left) {
        const std::string_view key = as_text(unpacker.text());
        if (key == "tensors") {
            tensors = unpacker.any(), seen[0] = true;
        } else if (key == "payloads") {
            payloads = unpacker.any(), seen[1] = true;
        } else if (key == "chains") {
            chains = unpacker.any();
        } else if (key == "reference") {
            seen[2] = true;
            reference_.reset();
            if (unpacker.nil()) continue;
            const Octets digest = unpacker.binary();
            if (digest.size() != sizeof(Digest))
                refuse(FEDSZ_ERROR_CORRUPT, "not a header: a digest of ",
                       std::uint64_t(digest.size()), " bytes");
            std::ranges::copy(digest, reference_.emplace().begin());
        } else {
            refuse(FEDSZ_ERROR_CORRUPT, "not a header: unknown field '", key, "'");
        }
    }
    unpacker.end();
    if (!seen[0] || !seen[1] || !seen[2])
        refuse(FEDSZ_ERROR_CORRUPT, "not a header: a field is missing");
    const std::uint64_t count = array_length(tensors), some = array_length(payloads),
                        many = array_length(chains);
    if (count > most) refuse(FEDSZ_ERROR_LIMIT, count, " tensors; limit ", most);
    if (some > count) refuse(FEDSZ_ERROR_CORRUPT, "more payloads than tensors");
    if (many > some) refuse(FEDSZ_ERROR_CORRUPT, "more chains than payloads");
    if (many > kMostChains) refuse(FEDSZ_ERROR_LIMIT, many, " chains; limit ", kMostChains);
}

void Header::read_tensors(Octets section) {
    Unpacker unpacker(section);
    const auto count = std::size_t(unpacker.array());
    tensors_.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
        if (unpacker.array() != 3)
            refuse(FEDSZ_ERROR_CORRUPT, "not a header: a tensor of another length");
        TensorRecord tensor{};
        tensor.name = unpacker.text();
        // One that there is not is refused once all else is known to be a header.
        const std::int64_t dtype = unpacker.integer();
        tensor.dtype = std::uint8_t(dtype >= 0 && dtype < kDtypeCount ? dtype : kDtypeCount);
        const std::uint64_t dimensions = unpacker.array();
        if (dimensions > FEDSZ_MAX_DIMENSIONS)
            refuse(FEDSZ_ERROR_CORRUPT, "not a header: a shape of ", dimensions, " dimensions");
        tensor.shape = std::uint32_t(shapes_.size());
        tensor.dimensions = std::uint8_t(dimensions);
        for (std::uint64_t d = 0; d < dimensions; ++d) {
            const std::int64_t length = unpacker.integer();
            if (length < 0 || std::uint64_t(length) >= kMaxDimension)
                refuse(FEDSZ_ERROR_CORRUPT, "not a header: a dimension of ", length);
            shapes_.push_back(std::uint64_t(length));
        }
        tensors_.push_back(tensor);
    }
    unpacker.end();
}

void Header::read_payloads(Octets section) {
    Unpacker unpacker(section);
    const auto count = std::size_t(unpacker.array());
    payloads_.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
        if (unpacker.array() != 6)
            refuse(FEDSZ_ERROR_CORRUPT, "not a header: a payload of another length");
        PayloadRecord payload{};
        payload.codec = unpacker.integer();
        const std::int64_t transform = unpacker.integer();
        payload.transform = std::uint8_t(transform >= 0 && transform < 255 ? transform : 255);
        const std::int64_t size = unpacker.integer();
        if (size < 0) refuse(FEDSZ_ERROR_CORRUPT, "not a header: a payload of ", size, " bytes");
        payload.size = std::uint64_t(size);
        payload.checksum = unpacker.integer();
        payload.lossy = !unpacker.nil();
        if (payload.lossy) payload.bound = unpacker.real();
        payload.members = std::uint32_t(members_.size());
        const std::uint64_t members = unpacker.array();
        if (members == 0) refuse(FEDSZ_ERROR_CORRUPT, "not a header: a payload of no tensors");
        for (std::uint64_t m = 0; m < members; ++m) {
            const std::int64_t member = unpacker.integer();
            const bool fits = member >= 0 && std::uint64_t(member) < tensors_.size();
            // More than there are tensors are refused below, and need not be kept.
            if (members_.size() <= tensors_.size())
                members_.push_back(fits ? std::uint32_t(member) : std::uint32_t(tensors_.size()));
        }
        payload.count = std::uint32_t(members_.size()) - payload.members;
        payloads_.push_back(payload);
    }
    unpacker.end();
}

void Header::read_chains(Octets section) {
    Unpacker unpacker(section);
    chains_ = unpacker.array();
    for (std::uint64_t i = 0; i < chains_; ++i) {
        if (unpacker.array() != 4)
            refuse(FEDSZ_ERROR_CORRUPT, "not a header: a chain of another length");
        if (const auto length = characters(unpacker.text()); length < 1 || length > kMostText)
            refuse(FEDSZ_ERROR_CORRUPT, "not a header: a chain of ", length, " characters");
        for (const char* what : {"seed", "round", "sender"})
            if (unpacker.integer() < 0)
                refuse(FEDSZ_ERROR_CORRUPT, "not a header: a negative ", what);
    }
    unpacker.end();
}

void Header::check(unsigned version, std::uint64_t allowed_bytes) {
    if (version == kValuesVersion && reference_)
        refuse(FEDSZ_ERROR_UNSUPPORTED, "a version 1 stream refers to nothing");
    if (version == kDifferencesVersion && !reference_)
        refuse(FEDSZ_ERROR_CORRUPT, "a version 2 stream names its reference");
    if ((chains_ > 0) != (version == kChainsVersion))
        refuse(FEDSZ_ERROR_CORRUPT, "a version ", std::uint64_t(version), " stream with ", chains_,
               " chains");
    std::uint64_t asked = 0;
    for (TensorRecord& tensor : tensors_) {
        if (tensor.dtype == kDtypeCount)
            refuse(FEDSZ_ERROR_UNSUPPORTED, "unknown dtype of '", as_text(tensor.name), "'");
        tensor.count = count_of(shape_of(tensor));
        tensor.size = product(tensor.count, kDtypes[tensor.dtype].size);
        asked = sum(asked, tensor.size);
    }
    if (!index_.build(tensors_.size(), [this](std::size_t i) { return as_text(tensors_[i].name); }))
        refuse(FEDSZ_ERROR_CORRUPT, "two tensors have the same name");
    check_members();
    for (const PayloadRecord& payload : payloads_) check(payload);
    // Sums of sizes stay in size_t, whatever the limits.
    const std::uint64_t allowed = std::min<std::uint64_t>(allowed_bytes, PTRDIFF_MAX);
    if (asked > allowed) refuse(FEDSZ_ERROR_LIMIT, "tensors of ", asked, " bytes; limit ", allowed);
    for (const TensorRecord& tensor : tensors_)
        if (!is_shape(shape_of(tensor)))
            refuse(FEDSZ_ERROR_CORRUPT, "a shape of '", as_text(tensor.name),
                   "', which no array has");
}

void Header::check_members() {
    constexpr std::uint32_t nowhere = std::uint32_t(-1);
    for (TensorRecord& tensor : tensors_) tensor.payload = nowhere;
    bool each = members_.size() == tensors_.size();
    for (std::size_t p = 0; each && p < payloads_.size(); ++p)
        for (const std::uint32_t member : members_of(payloads_[p])) {
            each = each && member < tensors_.size() && tensors_[member].payload == nowhere;
            if (each) tensors_[member].payload = std::uint32_t(p);
        }
    if (!each) refuse(FEDSZ_ERROR_CORRUPT, "not every tensor is in exactly one payload");
}

void Header::check(const PayloadRecord& payload) const {
    const unsigned transform = payload.transform;
    const bool chained = transform == kChain || transform == kChainDifference;
    const bool differs = transform == FEDSZ_DIFFERENCE || transform == FEDSZ_BITS ||
                         transform == kChainDifference;
    if (transform > kChainDifference || (differs && !reference_) || (chained && chains_ == 0))
        refuse(FEDSZ_ERROR_UNSUPPORTED, "unknown transform ", std::uint64_t(transform));
    if (chained && (payload.codec < 0 || std::uint64_t(payload.codec) >= chains_))
        refuse(FEDSZ_ERROR_CORRUPT, "no chain ", payload.codec);
    if (chained && payload.lossy) refuse(FEDSZ_ERROR_CORRUPT, "a chain with an error bound");
    if (transform == FEDSZ_DIFFERENCE && !payload.lossy)
        refuse(FEDSZ_ERROR_CORRUPT, "a difference without an error bound");
    if (transform == FEDSZ_BITS && payload.lossy)
        refuse(FEDSZ_ERROR_CORRUPT, "a difference of bits with an error bound");
    const auto members = members_of(payload);
    if (std::ranges::adjacent_find(members, std::greater_equal<>()) != members.end())
        refuse(FEDSZ_ERROR_CORRUPT, "the tensors of a payload do not ascend");
    const auto type = [this](std::uint32_t member) -> const DtypeInfo& {
        return kDtypes[tensors_[member].dtype];
    };
    const bool one = members.size() == 1 && type(members[0]).lossy;
    if (!payload.lossy) {
        for (const std::uint32_t member : members)
            if (type(member).size != type(members[0]).size)
                refuse(FEDSZ_ERROR_CORRUPT, "a lossless payload mixes item sizes");
        for (const std::uint32_t member : members)
            if (transform == FEDSZ_BITS && type(member).complex)
                refuse(FEDSZ_ERROR_CORRUPT, "a difference of bits of complex numbers");
        if (chained && !one)
            refuse(FEDSZ_ERROR_CORRUPT, "a chain of something else than one floating tensor");
    } else if (!(std::isfinite(payload.bound) && payload.bound >= 0)) {
        refuse(FEDSZ_ERROR_CORRUPT, "an error bound that is not finite, or below 0");
    } else if (!one) {
        refuse(FEDSZ_ERROR_CORRUPT,
               "a lossy payload holds something else than one floating tensor");
    }
}

}  // namespace fedsz::library

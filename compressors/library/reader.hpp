// A stream -> tensors.
#pragma once

#include <cstddef>

#include "arena.hpp"
#include "reference.hpp"
#include "stored_header.hpp"

namespace fedsz::library {

class Reader {
public:
    // Reads the header; the stream must outlive the reader. Throws Failure for what is no stream.
    Reader(Octets stream, const fedsz_limits& limits);

    const Header& header() const { return header_; }
    fedsz_info info(std::size_t index) const;

    // Fills `elements`, of the tensor's size.
    void decode(std::size_t index, const Reference* reference, void* elements);

private:
    std::uint64_t offset_of(const PayloadRecord& payload) const {
        return stored_.end + payload.offset;
    }
    Octets checked(std::size_t payload);
    const void* base_of(const TensorRecord& tensor, const Reference* reference) const;
    void decode_lossy(const TensorRecord& tensor, const PayloadRecord& payload, Octets bytes,
                      const void* base, void* elements) const;
    void decode_lossless(std::size_t index, std::size_t payload, Octets bytes,
                         const Reference* reference, std::uint8_t* elements);
    Octets unpacked(std::size_t payload, Octets bytes);

    Octets stream_;
    StoredHeader stored_;
    Header header_;
    Vector<std::uint8_t> checked_;  // whether a payload's checksum has been seen to fit
    Vector<Buffer> unpacked_;       // by payload, of those that several tensors share
};

}  // namespace fedsz::library

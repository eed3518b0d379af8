// A stream's header, read and checked: docs/format.md, "Header". Python's reader has it checked here, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "format.hpp"
#include "names.hpp"

namespace fedsz::library {

struct TensorRecord {
    Octets name;
    std::uint64_t count, size;  // elements, bytes
    std::uint32_t shape, payload;
    std::uint8_t dimensions, dtype;
};

struct PayloadRecord {
    std::int64_t codec;  // or the number of a chain
    std::uint8_t transform;
    bool lossy;
    double bound;
    std::int64_t checksum;
    std::uint64_t size, offset;  // behind the header
    std::uint32_t members, count;
};

// What a stream may have: tensors, and bytes of theirs in all.
struct Allowance {
    std::uint64_t tensors, decoded_bytes;
};

class Header {
public:
    // Reads what a stream of that version says of itself; the bytes must outlive the header. Throws
    // Failure for what is none, contradicts itself, or asks for more than is allowed.
    Header(Octets inflated, unsigned version, const Allowance& allowance);

    const Vector<TensorRecord>& tensors() const { return tensors_; }
    const Vector<PayloadRecord>& payloads() const { return payloads_; }
    const std::optional<Digest>& reference() const { return reference_; }
    std::uint64_t payload_bytes() const { return payload_bytes_; }  // of all together

    Shape shape_of(const TensorRecord& tensor) const {
        return Shape(shapes_).subspan(tensor.shape, tensor.dimensions);
    }
    std::span<const std::uint32_t> members_of(const PayloadRecord& payload) const {
        return std::span(members_).subspan(payload.members, payload.count);
    }
    std::size_t find(std::string_view name) const {
        return index_.find(name, [this](std::size_t i) { return as_text(tensors_[i].name); });
    }

private:
    void read_sections(Octets inflated, std::uint64_t most, Octets& tensors, Octets& payloads,
                       Octets& chains);
    void read_tensors(Octets section);
    void read_payloads(Octets section);
    void read_chains(Octets section);
    void check(unsigned version, std::uint64_t allowed_bytes);
    void check_members();
    void check(const PayloadRecord& payload) const;

    Vector<TensorRecord> tensors_;
    Vector<PayloadRecord> payloads_;
    Vector<std::uint64_t> shapes_;
    Vector<std::uint32_t> members_;
    std::optional<Digest> reference_;
    std::uint64_t chains_ = 0, payload_bytes_ = 0;
    NameIndex index_;
};

}  // namespace fedsz::library

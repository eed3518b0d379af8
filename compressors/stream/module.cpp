// fedsz.codecs._stream: see fedsz/codecs/_stream.pyi.

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <bit>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "bits.hpp"
#include "failure.hpp"
#include "header.hpp"
#include "python.hpp"
#include "xxh3.hpp"

namespace {

using namespace fedsz;

// Below this, to give the GIL away takes longer than to hash.
constexpr std::size_t kWorthIt = std::size_t(1) << 16;  // bytes

nb::bytes bytes_of(const stream::Digest& digest) {
    return nb::bytes(digest.data(), digest.size());
}

class Hash {
public:
    explicit Hash(const std::string& level)
        : hash_(level.empty() ? levels<stream::Built>().best() : *levels<stream::Built>().named(level)) {}

    void update(nb::handle data) {
        const Bytes bytes(data);
        const auto piece = bytes.span();
        if (piece.size() < kWorthIt) return add(piece);
        const nb::gil_scoped_release released;
        add(piece);
    }

    nb::bytes digest() {
        const std::lock_guard alone(mutex_);
        return bytes_of(hash_.digest());
    }

private:
    // Other threads may use the same object once the GIL is away.
    void add(std::span<const std::byte> piece) {
        const std::lock_guard alone(mutex_);
        hash_.add(piece.data(), piece.size());
    }

    std::mutex mutex_;
    stream::Xxh3 hash_;
};

nb::bytes xxh3(nb::handle data) {
    const Bytes bytes(data);
    const auto all = bytes.span();
    const auto digest = [&] {
        stream::Xxh3 hash;
        hash.add(all.data(), all.size());
        return hash.digest();
    };
    return bytes_of(all.size() < kWorthIt ? digest() : unlocked(digest));
}

std::uint64_t xxh3_64(nb::handle data) {
    const Bytes bytes(data);
    stream::Xxh3 hash;
    hash.add(bytes.span().data(), bytes.span().size());
    return hash.digest64();
}

std::optional<std::pair<std::string, std::string>> header_fault(nb::handle inflated,
                                                                unsigned version,
                                                                std::uint64_t tensors,
                                                                std::uint64_t decoded_bytes) {
    const Bytes bytes(inflated);
    const auto all = bytes.span();
    const library::Octets header(reinterpret_cast<const std::uint8_t*>(all.data()), all.size());
    try {
        unlocked([&] { library::Header(header, version, {tensors, decoded_bytes}); });
        return std::nullopt;
    } catch (const library::Failure& failure) {
        const auto status = failure.error.status;
        return std::pair(status == FEDSZ_ERROR_LIMIT         ? "limit"
                         : status == FEDSZ_ERROR_UNSUPPORTED ? "unsupported"
                                                             : "corrupt",
                         failure.what());
    }
}

// Throws std::invalid_argument unless a tensor of so many bytes has elements of that width, and a
// place in planes of as many rows from column `first` on.
stream::Items items_of(std::size_t bytes, std::size_t width, bool floating, std::size_t all,
                       std::size_t first) {
    if (!std::has_single_bit(width) || width > 8)
        throw std::invalid_argument("elements are of 1, 2, 4 or 8 bytes");
    const std::size_t count = bytes / width, plane = all / width;
    if (bytes % width || all % width || first > plane || count > plane - first)
        throw std::invalid_argument("elements and planes do not fit together");
    return {width, count, floating};
}

void bit_difference(Flat<const std::uint8_t> x, Flat<const std::uint8_t> base, std::size_t width,
                    bool floating, Flat<std::uint8_t> planes, std::size_t first) {
    const auto items = items_of(x.size(), width, floating, planes.size(), first);
    if (base.size() != x.size()) throw std::invalid_argument("x and its base differ in size");
    unlocked([&] {
        stream::bit_difference(items, x.data(), base.data(), planes.data() + first,
                               planes.size() / width);
    });
}

void move_bits(nb::handle planes, std::size_t first, std::size_t width, bool floating,
               Flat<const std::uint8_t> base, Flat<std::uint8_t> y) {
    const Bytes bytes(planes);
    const auto all = bytes.span();
    const auto items = items_of(base.size(), width, floating, all.size(), first);
    if (base.size() != y.size()) throw std::invalid_argument("y and its base differ in size");
    unlocked([&] {
        stream::move_bits(items, reinterpret_cast<const std::uint8_t*>(all.data()) + first,
                          all.size() / width, base.data(), y.data());
    });
}

}  // namespace

NB_MODULE(_stream, m) {
    nb::class_<Hash>(m, "Xxh3")
        .def(nb::init<const std::string&>(), nb::arg("level") = "")
        .def("update", &Hash::update, nb::arg("data"))
        .def("digest", &Hash::digest);
    m.def("xxh3", &xxh3, nb::arg("data"));
    m.def("xxh3_64", &xxh3_64, nb::arg("data"));
    m.def("header_fault", &header_fault, nb::arg("inflated"), nb::arg("version"),
          nb::arg("tensors"), nb::arg("decoded_bytes"));
    const auto exact = [](const char* name) { return nb::arg(name).noconvert(); };
    m.def("bit_difference", &bit_difference, exact("x"), exact("base"), nb::arg("width"),
          nb::arg("floating"), exact("planes"), nb::arg("first"));
    m.def("move_bits", &move_bits, nb::arg("planes"), nb::arg("first"), nb::arg("width"),
          nb::arg("floating"), exact("base"), exact("y"));
    m.def("levels", [] { return levels<stream::Built>().names(); });
}

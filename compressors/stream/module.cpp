// fedsz.codecs._stream: see fedsz/codecs/_stream.pyi.

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <mutex>
#include <string>

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
        : hash_(level.empty() ? stream::levels().best() : *stream::levels().named(level)) {}

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

}  // namespace

NB_MODULE(_stream, m) {
    nb::class_<Hash>(m, "Xxh3")
        .def(nb::init<const std::string&>(), nb::arg("level") = "")
        .def("update", &Hash::update, nb::arg("data"))
        .def("digest", &Hash::digest);
    m.def("xxh3", &xxh3, nb::arg("data"));
    m.def("xxh3_64", &xxh3_64, nb::arg("data"));
    m.def("levels", [] { return stream::levels().names(); });
}

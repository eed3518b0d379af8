// fedsz.codecs._ring: see fedsz/codecs/_ring.pyi.

#include "aligned.hpp"
#include "corrupt.hpp"
#include "python.hpp"
#include "ring.hpp"

namespace {

using namespace fedsz;

template <class T>
using Flat = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class T>
std::span<T> span_of(const Flat<T>& x, const char* what) {
    if (x.size() > 0) check_aligned<T>(x.data(), what);
    return {x.data(), x.size()};
}

template <class T>
nb::bytes pack(Flat<const T> tokens, unsigned bits) {
    const auto from = span_of(tokens, "tokens");
    const nb::bytes packed = new_bytes(ring::packed_size(from.size(), bits));
    const auto to = bytes_to_fill(packed);
    const nb::gil_scoped_release released;
    ring::pack(from, bits, to);
    return packed;
}

template <class T>
void unpack_add(nb::handle packed, unsigned bits, Flat<T> sums) {
    const Bytes bytes(packed);
    const auto to = span_of(sums, "sums");
    const nb::gil_scoped_release released;
    ring::unpack_add(bytes.span(), bits, to);
}

template <class T>
void define(nb::module_& m) {
    m.def("pack", &pack<T>, nb::arg("tokens").noconvert(), nb::arg("bits"));
    m.def("unpack_add", &unpack_add<T>, nb::arg("packed"), nb::arg("bits"),
          nb::arg("sums").noconvert());
}

}  // namespace

NB_MODULE(_ring, m) {
    nb::exception<CorruptPayload>(m, "CorruptPayload", PyExc_ValueError);
    m.def("packed_size", &ring::packed_size, nb::arg("count"), nb::arg("bits"));
    define<std::uint8_t>(m);
    define<std::uint16_t>(m);
    define<std::uint32_t>(m);
}

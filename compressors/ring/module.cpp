// fedsz.codecs._ring: see fedsz/codecs/_ring.pyi.

#include <nanobind/stl/pair.h>

#include "corrupt.hpp"
#include "python.hpp"
#include "quantise.hpp"
#include "ring.hpp"

namespace {

using namespace fedsz;

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

using Floats = Flat<const float>;
using Doubles = Flat<const double>;
using Positions = Flat<const std::int64_t>;

bool add_step(Floats x, Floats start, Floats residual, Flat<float> y) {
    const auto from = span_of(x, "x"), base = span_of(start, "start");
    const auto before = span_of(residual, "residual");
    const auto to = span_of(y, "y");
    return unlocked([&] { return ring::add_step(from, base, before, to); });
}

ring::Grid grid_of(const Positions& where, const Doubles& steps, const Doubles& drawn) {
    return {span_of(where, "where"), span_of(steps, "steps"), span_of(drawn, "drawn")};
}

template <class T>
std::pair<double, std::size_t> quantise(Flat<float> y, Positions where, Doubles steps,
                                        Doubles drawn, double part, std::uint32_t most,
                                        Flat<T> tokens) {
    const auto grid = grid_of(where, steps, drawn);
    const auto from = span_of(y, "y");
    const auto to = span_of(tokens, "tokens");
    const auto found = unlocked([&] { return ring::quantise(from, grid, part, most, to); });
    return {found.energy, found.clipped};
}

template <class T>
std::uint32_t dequantise(Flat<const T> sums, Positions where, Doubles steps, Doubles drawn,
                         double shift, double factor, Flat<float> y) {
    const auto grid = grid_of(where, steps, drawn);
    const auto from = span_of(sums, "sums");
    const auto to = span_of(y, "y");
    return unlocked([&] { return ring::dequantise(from, grid, shift, factor, to); });
}

template <class T>
void define(nb::module_& m) {
    m.def("pack", &pack<T>, nb::arg("tokens").noconvert(), nb::arg("bits"));
    m.def("unpack_add", &unpack_add<T>, nb::arg("packed"), nb::arg("bits"),
          nb::arg("sums").noconvert());
    m.def("quantise", &quantise<T>, nb::arg("y").noconvert(), nb::arg("where").noconvert(),
          nb::arg("steps").noconvert(), nb::arg("drawn").noconvert(), nb::arg("part"),
          nb::arg("most"), nb::arg("tokens").noconvert());
    m.def("dequantise", &dequantise<T>, nb::arg("sums").noconvert(), nb::arg("where").noconvert(),
          nb::arg("steps").noconvert(), nb::arg("drawn").noconvert(), nb::arg("shift"),
          nb::arg("factor"), nb::arg("y").noconvert());
}

}  // namespace

NB_MODULE(_ring, m) {
    nb::exception<CorruptPayload>(m, "CorruptPayload", PyExc_ValueError);
    m.def("add_step", &add_step, nb::arg("x").noconvert(), nb::arg("start").noconvert(),
          nb::arg("residual").noconvert(), nb::arg("y").noconvert());
    m.def("packed_size", &ring::packed_size, nb::arg("count"), nb::arg("bits"));
    define<std::uint8_t>(m);
    define<std::uint16_t>(m);
    define<std::uint32_t>(m);
}

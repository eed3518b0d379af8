// fedsz.codecs._szx: see fedsz/codecs/_szx.pyi.

#include <nanobind/stl/pair.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "corrupt.hpp"
#include "python.hpp"
#include "szx.hpp"

namespace {

using namespace fedsz;

std::pair<nb::bytes, double> encode(const Flat<const float>& x, double bound) {
    const auto values = span_of(x, "x");
    if (!(bound >= 0)) {
        throw std::invalid_argument("bound must be 0 or more, got " + std::to_string(bound));
    }
    const szx::Plan plan = unlocked([&] { return szx::plan(values, bound); });
    nb::bytes payload = new_bytes(plan.size);
    const auto bytes = bytes_to_fill(payload);
    unlocked([&] { szx::write(values, plan, bytes); });
    return {std::move(payload), plan.max_error};
}

ArrayOut decode(nb::handle payload, std::size_t n) {
    const Bytes bytes(payload);
    szx::check_size(bytes.span(), n);
    ArrayOut x = new_array(n);
    unlocked([&] { szx::decode(bytes.span(), {x.data(), n}); });
    return x;
}

}  // namespace

NB_MODULE(_szx, m) {
    nb::exception<CorruptPayload>(m, "CorruptPayload", PyExc_ValueError);
    m.def("encode", &encode, nb::arg("x").noconvert(), nb::arg("bound"));
    m.def("decode", &decode, nb::arg("payload"), nb::arg("n"));
}

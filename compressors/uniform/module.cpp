// Python's view of uniform: fedsz/codecs/_uniform.pyi has the signatures.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "kernels.hpp"
#include "python.hpp"
#include "uniform.hpp"

namespace fedsz::uniform {
namespace {

// Elements of any dtype, as their bytes: numpy's bfloat16 has no code in the buffer protocol.
using In = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Out = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

Settings settings_of(unsigned effort, unsigned threads, const std::string& level) {
    Settings settings{effort, threads, nullptr};
    const Levels& all = levels();
    for (std::size_t i = 0; i < all.count; ++i)
        if (level == all.level[i]->name) settings.kernels = all.level[i];
    if (!level.empty() && !settings.kernels) throw nb::value_error("no such level here");
    return settings;
}

// The elements that others are differences from, or null.
const void* elements_of(const std::optional<In>& base, unsigned dtype, std::size_t bytes) {
    if (!base) return nullptr;
    if (dtype > 1) throw nb::value_error("differences are of float32 or float64");
    if (base->size() != bytes) throw nb::value_error("a base of another size");
    return base->data();
}

std::pair<nb::object, double> encode_array(In x, unsigned dtype, std::size_t rows,
                                           std::size_t columns, unsigned planes, unsigned width,
                                           double bound, unsigned effort, unsigned threads,
                                           const std::string& level, std::optional<In> base) {
    const Settings settings = settings_of(effort, threads, level);
    const Geometry geometry{rows, columns, planes, width};
    const void* from = elements_of(base, dtype, x.size());
    // What is not written is not touched: an operating system gives it no memory.
    PyObject* bytes = new_bytes(capacity(Dtype(dtype), geometry.size())).release().ptr();
    auto* data = reinterpret_cast<std::uint8_t*>(PyBytes_AsString(bytes));
    Encoded encoded{};
    try {
        const nb::gil_scoped_release released;
        encoded = encode(Dtype(dtype), x.data(), geometry, bound, settings,
                         {data, capacity(Dtype(dtype), geometry.size())}, from);
    } catch (...) {
        Py_DECREF(bytes);
        throw;
    }
    if (_PyBytes_Resize(&bytes, Py_ssize_t(encoded.size)) != 0) throw nb::python_error();
    return {nb::steal(bytes), encoded.max_error};
}

std::size_t elements(std::size_t bytes, unsigned dtype, bool sums = false) {
    return bytes / (dtype == 1 ? 8 : dtype == 0 || sums ? 4 : 2);
}

void decode_array(nb::handle payload, unsigned dtype, Out y, unsigned threads,
                  const std::string& level, std::optional<In> base) {
    const fedsz::Bytes bytes(payload);
    const void* onto = elements_of(base, dtype, y.size());
    const Settings settings = settings_of(0, threads, level);
    const nb::gil_scoped_release released;
    decode(Dtype(dtype), as_octets(bytes.span()), elements(y.size(), dtype), settings, y.data(),
           onto);
}

void accumulate_array(nb::handle payload, unsigned dtype, double weight, Out sums, unsigned threads,
                      const std::string& level) {
    const fedsz::Bytes bytes(payload);
    const Settings settings = settings_of(0, threads, level);
    const nb::gil_scoped_release released;
    accumulate(Dtype(dtype), as_octets(bytes.span()), elements(sums.size(), dtype, true), weight,
               settings, sums.data());
}

std::tuple<double, double, double, double, double> compare_arrays(In x, In base, unsigned dtype,
                                                                  bool deviation, unsigned threads,
                                                                  const std::string& level) {
    const Settings settings = settings_of(0, threads, level);
    const void* from = elements_of(base, dtype, x.size());
    const nb::gil_scoped_release released;
    const Comparison c =
        compare(Dtype(dtype), x.data(), from, elements(x.size(), dtype), deviation, settings);
    return {c.low, c.high, c.least, c.greatest, c.deviation};
}

std::vector<std::string> level_names() {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < levels().count; ++i) names.emplace_back(levels().level[i]->name);
    return names;
}

}  // namespace

NB_MODULE(_uniform, m) {
    using namespace nb::literals;
    nb::exception<CorruptPayload>(m, "CorruptPayload", PyExc_ValueError);
    m.def("encode", encode_array, "x"_a, "dtype"_a, "rows"_a, "columns"_a, "planes"_a, "width"_a,
          "bound"_a, "effort"_a, "threads"_a, "level"_a, "base"_a = nb::none());
    m.def("decode", decode_array, "payload"_a, "dtype"_a, "y"_a, "threads"_a, "level"_a,
          "base"_a = nb::none());
    m.def("compare", compare_arrays);
    m.def("accumulate", accumulate_array);
    m.def("levels", level_names);
}

}  // namespace fedsz::uniform

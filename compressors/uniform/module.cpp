// Python's view of uniform: fedsz/codecs/_uniform.pyi has the signatures.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <utility>

#include "kernels.hpp"
#include "python.hpp"
#include "uniform.hpp"

namespace fedsz::uniform {
namespace {

// What does not fit together is a ValueError: here, as far as sizes go; beyond that, uniform.cpp sees
// to it.

// Elements of any dtype, as their bytes: numpy's bfloat16 has no code in the buffer protocol.
using In = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Out = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

Settings settings_of(unsigned effort, unsigned threads, const std::string& level) {
    return {effort, threads, levels<Built>().named(level)};
}

Dtype dtype_of(unsigned id) {
    if (id > unsigned(Dtype::bfloat16))
        throw std::invalid_argument("no dtype " + std::to_string(id) + "; have 0..3");
    return Dtype(id);
}

// How many elements of so many bytes each there are.
std::size_t count_of(std::size_t bytes, std::size_t size) {
    if (bytes % size != 0)
        throw std::invalid_argument(std::to_string(bytes) + " bytes are no whole number of " +
                                    std::to_string(size) + "-byte elements");
    return bytes / size;
}

// A geometry of n elements; its product may be more than a number can hold.
Geometry geometry_of(std::size_t n, std::size_t rows, std::size_t columns, unsigned planes,
                     unsigned width) {
    if (rows == 0 ? n != 0 : n % rows != 0 || n / rows != columns)
        throw std::invalid_argument(std::to_string(n) + " elements are not " +
                                    std::to_string(rows) + " rows of " + std::to_string(columns));
    return {rows, columns, planes, width};
}

void check_size(const In& base, std::size_t bytes) {
    if (base.size() != bytes)
        throw std::invalid_argument("a base of another size: " + std::to_string(base.size()) +
                                    " bytes for " + std::to_string(bytes));
}

// The elements that others, of so many bytes, are differences from; or null.
const void* elements_of(const std::optional<In>& base, Dtype dtype, std::size_t bytes) {
    if (!base) return nullptr;
    if (dtype != Dtype::float32 && dtype != Dtype::float64)
        throw nb::value_error("differences are of float32 or float64");
    check_size(*base, bytes);
    return base->data();
}

// What is to be added to others of a dtype, which take so many bytes.
Residual residual_of(const std::optional<In>& residual, double weight, Dtype dtype,
                     std::size_t bytes) {
    return {elements_of(residual, dtype, bytes), weight};
}

std::tuple<nb::object, double, double> encode_array(
    In x, unsigned id, std::size_t rows, std::size_t columns, unsigned planes, unsigned width,
    double bound, unsigned effort, unsigned threads, const std::string& level,
    std::optional<In> base, double step, std::optional<In> residual, double weight,
    std::optional<Out> left) {
    const Settings settings = settings_of(effort, threads, level);
    const Dtype dtype = dtype_of(id);
    const std::size_t n = count_of(x.size(), size_of(dtype));
    const Geometry geometry = geometry_of(n, rows, columns, planes, width);
    const void* from = elements_of(base, dtype, x.size());
    const Residual before = residual_of(residual, weight, dtype, x.size());
    if (left && left->size() != x.size())
        throw std::invalid_argument("left of another size: " + std::to_string(left->size()) +
                                    " bytes for " + std::to_string(x.size()));
    // What is not written is not touched: an operating system gives it no memory.
    nb::bytes payload = new_bytes(capacity(dtype, n));
    const auto room = bytes_to_fill(payload);
    Encoded encoded{};
    {
        const nb::gil_scoped_release released;
        encoded = encode(dtype, x.data(), geometry, bound, settings,
                         {reinterpret_cast<std::uint8_t*>(room.data()), room.size()}, from, step,
                         before, left ? left->data() : nullptr);
    }
    return {shortened(std::move(payload), encoded.size), encoded.max_error, encoded.left};
}

void decode_array(nb::handle payload, unsigned id, Out y, unsigned threads,
                  const std::string& level, std::optional<In> base) {
    const fedsz::Bytes bytes(payload);
    const Dtype dtype = dtype_of(id);
    const std::size_t n = count_of(y.size(), size_of(dtype));
    const void* onto = elements_of(base, dtype, y.size());
    const Settings settings = settings_of(0, threads, level);
    const nb::gil_scoped_release released;
    decode(dtype, as_octets(bytes.span()), n, settings, y.data(), onto);
}

void accumulate_array(nb::handle payload, unsigned id, double weight, Out sums, unsigned threads,
                      const std::string& level) {
    const fedsz::Bytes bytes(payload);
    const Dtype dtype = dtype_of(id);
    const std::size_t n = count_of(sums.size(), size_of_sum(dtype));
    const Settings settings = settings_of(0, threads, level);
    const nb::gil_scoped_release released;
    accumulate(dtype, as_octets(bytes.span()), n, weight, settings, sums.data());
}

// A payload, kept as long as what was opened of it.
class OpenedPayload {
public:
    OpenedPayload(nb::handle payload, unsigned id, std::size_t n, unsigned threads,
                  const std::string& level, std::optional<In> base)
        : payload_(payload), dtype_(dtype_of(id)), n_(n) {
        const Settings settings = settings_of(0, threads, level);
        if (base && base->size() != n * size_of(dtype_))
            throw std::invalid_argument("a base of another size: " + std::to_string(base->size()) +
                                        " bytes for " + std::to_string(n) + " elements");
        const nb::gil_scoped_release released;
        opened_ = open(dtype_, as_octets(payload_.span()), n, settings,
                       base ? base->data() : nullptr);
    }

    double energy() const { return opened_->energy(); }

    void add(double weight, Out sums) const {
        if (count_of(sums.size(), size_of_sum(dtype_)) != n_)
            throw std::invalid_argument(std::to_string(n_) + " elements for " +
                                        std::to_string(sums.size()) + " bytes of sums");
        const nb::gil_scoped_release released;
        opened_->add(weight, sums.data());
    }

private:
    fedsz::Bytes payload_;
    Dtype dtype_;
    std::size_t n_;
    std::unique_ptr<Opened> opened_;
};

std::tuple<double, double, double, double, double, double, double> compare_arrays(
    In x, In base, unsigned id, bool deviation, bool energies, unsigned threads,
    const std::string& level, std::optional<In> residual, double weight) {
    const Settings settings = settings_of(0, threads, level);
    const Dtype dtype = dtype_of(id);
    const std::size_t n = count_of(x.size(), size_of(dtype));
    const void* from = elements_of(base, dtype, x.size());
    const Residual before = residual_of(residual, weight, dtype, x.size());
    const nb::gil_scoped_release released;
    const Comparison c = compare(dtype, x.data(), from, n, {deviation, energies}, settings, before);
    return {c.low, c.high, c.least, c.greatest, c.deviation, c.step, c.meant};
}

template <auto& Statistic>
double statistic(In x, unsigned id, const std::string& level) {
    const Settings settings = settings_of(0, 1, level);
    const Dtype dtype = dtype_of(id);
    const std::size_t n = count_of(x.size(), size_of(dtype));
    const nb::gil_scoped_release released;
    return Statistic(dtype, x.data(), n, settings);
}

double energy_of(In x, unsigned id, std::optional<In> base, bool masked, unsigned threads,
                 const std::string& level) {
    const Settings settings = settings_of(0, threads, level);
    const Dtype dtype = dtype_of(id);
    const std::size_t n = count_of(x.size(), size_of(dtype));
    if (base) check_size(*base, x.size());
    const nb::gil_scoped_release released;
    return energy(dtype, x.data(), base ? base->data() : nullptr, n, masked, settings);
}

}  // namespace

NB_MODULE(_uniform, m) {
    using namespace nb::literals;
    nb::exception<CorruptPayload>(m, "CorruptPayload", PyExc_ValueError);
    // An array of another kind is refused: what is written to a converted copy nobody would see.
    const auto x = "x"_a.noconvert(), y = "y"_a.noconvert(), sums = "sums"_a.noconvert();
    auto base = "base"_a.noconvert(), residual = "residual"_a.noconvert();
    auto left = "left"_a.noconvert();
    m.def("encode", encode_array, x, "dtype"_a, "rows"_a, "columns"_a, "planes"_a, "width"_a,
          "bound"_a, "effort"_a, "threads"_a, "level"_a, base = nb::none(), "step"_a = 0.0,
          residual = nb::none(), "weight"_a = 1.0, left = nb::none());
    m.def("decode", decode_array, "payload"_a, "dtype"_a, y, "threads"_a, "level"_a,
          base = nb::none());
    m.def("compare", compare_arrays, x, base, "dtype"_a, "deviation"_a, "energies"_a,
          "threads"_a, "level"_a, residual = nb::none(), "weight"_a = 1.0);
    m.def("value_range", statistic<value_range>, x, "dtype"_a, "level"_a);
    m.def("standard_deviation", statistic<standard_deviation>, x, "dtype"_a, "level"_a);
    m.def("energy", energy_of, x, "dtype"_a, base.none(), "masked"_a, "threads"_a, "level"_a);
    m.def("accumulate", accumulate_array, "payload"_a, "dtype"_a, "weight"_a, sums, "threads"_a,
          "level"_a);
    m.def("levels", [] { return levels<Built>().names(); });
    nb::class_<OpenedPayload>(m, "Opened")
        .def(nb::init<nb::handle, unsigned, std::size_t, unsigned, const std::string&,
                      std::optional<In>>(),
             "payload"_a, "dtype"_a, "n"_a, "threads"_a, "level"_a, base = nb::none())
        .def_prop_ro("energy", &OpenedPayload::energy)
        .def("add", &OpenedPayload::add, "weight"_a, sums);
}

}  // namespace fedsz::uniform

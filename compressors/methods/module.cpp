// fedsz.codecs._methods: see fedsz/codecs/_methods.pyi.

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "corrupt.hpp"
#include "methods.hpp"
#include "place.hpp"
#include "python.hpp"

namespace {

using namespace fedsz;
using methods::Draws;

void words(std::uint64_t key, std::uint64_t start, Flat<std::uint64_t> out) {
    const auto to = span_of(out, "out");
    unlocked([&] { methods::words(Draws(key), start, to); });
}

void uniforms(std::uint64_t key, std::uint64_t start, Flat<double> out) {
    const auto to = span_of(out, "out");
    unlocked([&] { methods::uniforms(Draws(key), start, to); });
}

void hexagonal_dither(std::uint64_t key, std::uint64_t start, Flat<double> x, Flat<double> y) {
    const auto across = span_of(x, "x");
    const auto up = span_of(y, "y");
    unlocked([&] { methods::hexagonal_dither(Draws(key), start, across, up); });
}

void nearest_hexagonal(Flat<double> x, Flat<double> y) {
    const auto across = span_of(x, "x");
    const auto up = span_of(y, "y");
    unlocked([&] { methods::nearest_hexagonal(across, up); });
}

bool nearest_points(Flat<const float> x, Flat<const float> residual, float weight,
                    Flat<const float> start, double step, Flat<float> points, Flat<float> left,
                    const std::string& level) {
    const auto from = span_of(x, "x");
    const auto added = span_of(residual, "residual");
    const auto base = span_of(start, "start");
    const auto to = span_of(points, "points");
    const auto rest = span_of(left, "left");
    return unlocked([&] {
        return methods::nearest_points(from, added, weight, base, step, to, rest, level);
    });
}

bool comes_back(Flat<const float> x, Flat<const float> base) {
    const auto from = span_of(x, "x");
    const auto to = span_of(base, "base");
    return unlocked([&] { return methods::comes_back(from, to); });
}

template <class T>
void cluster(Flat<const T> x, Flat<const double> bounds, Flat<std::int16_t> labels,
             Flat<double> sums, Flat<std::int64_t> counts) {
    const auto from = span_of(x, "x");
    const auto between = span_of(bounds, "bounds");
    const auto to = span_of(labels, "labels");
    const auto added = span_of(sums, "sums");
    const auto counted = span_of(counts, "counts");
    unlocked([&] { methods::cluster(from, between, to, added, counted); });
}

template <class T>
void flip_signs(std::uint64_t key, Flat<T> x) {
    const auto values = span_of(x, "x");
    unlocked([&] { methods::flip_signs(Draws(key), values); });
}

template <class T>
void add_to_sketch(std::uint64_t key, std::uint64_t start, Flat<const T> x, Flat<double> columns) {
    const auto from = span_of(x, "x");
    const auto to = span_of(columns, "columns");
    unlocked([&] { methods::add_to_sketch(Draws(key), start, from, to); });
}

template <class T>
void add_from_sketch(std::uint64_t key, std::uint64_t start, Flat<const T> columns, Flat<double> x) {
    const auto from = span_of(columns, "columns");
    const auto to = span_of(x, "x");
    unlocked([&] { methods::add_from_sketch(Draws(key), start, from, to); });
}

template <class T>
void hadamard(Flat<T> x, std::size_t width) {
    const auto values = span_of(x, "x");
    unlocked([&] { methods::hadamard(values, width); });
}

template <class T>
void add_sparse(Flat<const std::int64_t> indices, Flat<const T> values, T weight, Flat<T> sums) {
    const auto where = span_of(indices, "indices");
    const auto what = span_of(values, "values");
    const auto to = span_of(sums, "sums");
    unlocked([&] { methods::add_sparse(where, what, weight, to); });
}

void decode_gaps(nb::handle code, unsigned width, Flat<std::int64_t> gaps) {
    const Bytes bytes(code);
    const auto to = span_of(gaps, "gaps");
    unlocked([&] { methods::decode_gaps(bytes.span(), width, to); });
}

template <class T>
void define(nb::module_& m) {
    const auto exact = [](const char* name) { return nb::arg(name).noconvert(); };
    m.def("flip_signs", &flip_signs<T>, nb::arg("key"), exact("x"));
    m.def("add_to_sketch", &add_to_sketch<T>, nb::arg("key"), nb::arg("start"), exact("x"),
          exact("columns"));
    m.def("add_from_sketch", &add_from_sketch<T>, nb::arg("key"), nb::arg("start"),
          exact("columns"), exact("x"));
    m.def("hadamard", &hadamard<T>, exact("x"), nb::arg("width"));
    m.def("cluster", &cluster<T>, exact("x"), exact("bounds"), exact("labels"), exact("sums"),
          exact("counts"));
    m.def("add_sparse", &add_sparse<T>, exact("indices"), exact("values"), nb::arg("weight"),
          exact("sums"));
}

}  // namespace

NB_MODULE(_methods, m) {
    nb::exception<CorruptPayload>(m, "CorruptPayload", PyExc_ValueError);
    m.def("words", &words, nb::arg("key"), nb::arg("start"), nb::arg("out").noconvert());
    m.def("uniforms", &uniforms, nb::arg("key"), nb::arg("start"), nb::arg("out").noconvert());
    m.def("hexagonal_dither", &hexagonal_dither, nb::arg("key"), nb::arg("start"),
          nb::arg("x").noconvert(), nb::arg("y").noconvert());
    m.def("nearest_hexagonal", &nearest_hexagonal, nb::arg("x").noconvert(),
          nb::arg("y").noconvert());
    const auto exact = [](const char* name) { return nb::arg(name).noconvert(); };
    m.def("nearest_points", &nearest_points, exact("x"), exact("residual"), nb::arg("weight"),
          exact("start"), nb::arg("step"), exact("points"), exact("left"), nb::arg("level") = "");
    m.def("comes_back", &comes_back, exact("x"), exact("base"));
    m.def("point_levels", [] { return levels<methods::Built>().names(); });
    m.def("decode_gaps", &decode_gaps, nb::arg("code"), nb::arg("width"),
          nb::arg("gaps").noconvert());
    define<float>(m);
    define<double>(m);
}

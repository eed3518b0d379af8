// fedsz.codecs._eigen: see fedsz/codecs/_eigen.pyi.

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>

#include "eigen.hpp"
#include "kernels.hpp"
#include "python.hpp"

namespace {

using namespace fedsz;

template <class T>
bool add_products(Flat<const T> x, std::size_t outer, std::size_t length, std::size_t inner,
                  std::size_t block, double decay, Flat<float> products, const std::string& level) {
    const auto from = span_of(x, "x");
    const auto to = span_of(products, "products");
    const auto* kernels = levels<eigen::Built>().named(level);
    return unlocked([&] {
        return eigen::add_products(from, {outer, length, inner, block}, decay, to, kernels);
    });
}

void eigenvectors(Flat<const float> products, std::size_t length, std::size_t block,
                  Flat<float> vectors) {
    const auto from = span_of(products, "products");
    const auto to = span_of(vectors, "vectors");
    unlocked([&] { eigen::eigenvectors(from, {1, length, 1, block}, to); });
}

template <class T>
void rotate(Flat<T> x, std::size_t outer, std::size_t length, std::size_t inner, std::size_t block,
            Flat<const float> vectors, bool back, const std::string& level) {
    const auto values = span_of(x, "x");
    const auto around = span_of(vectors, "vectors");
    const auto* kernels = levels<eigen::Built>().named(level);
    unlocked([&] { eigen::rotate(values, {outer, length, inner, block}, around, back, kernels); });
}

template <class T>
void define(nb::module_& m) {
    const auto exact = [](const char* name) { return nb::arg(name).noconvert(); };
    m.def("add_products", &add_products<T>, exact("x"), nb::arg("outer"), nb::arg("length"),
          nb::arg("inner"), nb::arg("block"), nb::arg("decay"), exact("products"),
          nb::arg("level") = "");
    m.def("rotate", &rotate<T>, exact("x"), nb::arg("outer"), nb::arg("length"), nb::arg("inner"),
          nb::arg("block"), exact("vectors"), nb::arg("back"), nb::arg("level") = "");
}

}  // namespace

NB_MODULE(_eigen, m) {
    m.def("eigenvectors", &eigenvectors, nb::arg("products").noconvert(), nb::arg("length"),
          nb::arg("block"), nb::arg("vectors").noconvert());
    m.def("levels", [] { return levels<eigen::Built>().names(); });
    define<float>(m);
    define<double>(m);
}

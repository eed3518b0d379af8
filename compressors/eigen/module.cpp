// fedsz.codecs._eigen: see fedsz/codecs/_eigen.pyi.

#include <stdexcept>
#include <string>

#include "aligned.hpp"
#include "eigen.hpp"
#include "floats.hpp"
#include "kernels.hpp"
#include "python.hpp"

#include <nanobind/stl/string.h>

namespace {

using namespace fedsz;

template <class T>
using Flat = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class T>
std::span<T> span_of(const Flat<T>& x, const char* what) {
    if (x.size() > 0) check_aligned<T>(x.data(), what);
    return {x.data(), x.size()};
}

const eigen::Kernels* kernels_of(const std::string& level) {
    const eigen::Levels& all = eigen::levels();
    for (std::size_t i = 0; i < all.count; ++i)
        if (all.level[i]->name == level) return all.level[i];
    if (!level.empty()) throw std::invalid_argument("no level " + level);
    return nullptr;
}

template <class T>
bool add_products(Flat<const T> x, std::size_t outer, std::size_t length, std::size_t inner,
                  std::size_t block, double decay, Flat<float> products, const std::string& level) {
    const auto from = span_of(x, "x");
    const auto to = span_of(products, "products");
    const eigen::Kernels* kernels = kernels_of(level);
    const nb::gil_scoped_release released;
    const DefaultFloats floats;
    return eigen::add_products(from, {outer, length, inner, block}, decay, to, kernels);
}

void eigenvectors(Flat<const float> products, std::size_t length, std::size_t block,
                  Flat<float> vectors) {
    const auto from = span_of(products, "products");
    const auto to = span_of(vectors, "vectors");
    const nb::gil_scoped_release released;
    const DefaultFloats floats;
    eigen::eigenvectors(from, {1, length, 1, block}, to);
}

template <class T>
void rotate(Flat<T> x, std::size_t outer, std::size_t length, std::size_t inner, std::size_t block,
            Flat<const float> vectors, bool back, const std::string& level) {
    const auto values = span_of(x, "x");
    const auto around = span_of(vectors, "vectors");
    const eigen::Kernels* kernels = kernels_of(level);
    const nb::gil_scoped_release released;
    const DefaultFloats floats;
    eigen::rotate(values, {outer, length, inner, block}, around, back, kernels);
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
    m.def("levels", [] {
        nb::list names;
        const eigen::Levels& all = eigen::levels();
        for (std::size_t i = 0; i < all.count; ++i) names.append(all.level[i]->name);
        return names;
    });
    define<float>(m);
    define<double>(m);
}

// What the bindings share: memory that belongs to Python.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>

#ifdef __linux__
#include <sys/mman.h>
#include <unistd.h>
#endif

#include "aligned.hpp"
#include "floats.hpp"

namespace fedsz {

namespace nb = nanobind;

// A flat array, to read or to fill, and one that belongs to numpy.
template <class T>
using Flat = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ArrayOut = nb::ndarray<float, nb::numpy, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Its elements. Throws std::invalid_argument, with its name, where it is not aligned.
template <class T>
std::span<T> span_of(const Flat<T>& x, const char* what) {
    if (x.size() > 0) check_aligned<T>(x.data(), what);
    return {x.data(), x.size()};
}

// Does `work` without the GIL, in the arithmetic that numpy has.
template <class Work>
auto unlocked(const Work& work) {
    const nb::gil_scoped_release released;
    const DefaultFloats floats;
    return work();
}

// The bytes of any object with a contiguous buffer, for as long as this lives.
class Bytes {
public:
    explicit Bytes(nb::handle object) {
        if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) {
            throw nb::python_error();
        }
    }
    ~Bytes() { PyBuffer_Release(&view_); }
    Bytes(const Bytes&) = delete;
    Bytes& operator=(const Bytes&) = delete;

    std::span<const std::byte> span() const {
        return {static_cast<const std::byte*>(view_.buf), static_cast<std::size_t>(view_.len)};
    }

private:
    Py_buffer view_{};
};

// A `bytes` object of that size to be filled through `bytes_to_fill`, before anyone else sees it.
inline nb::bytes new_bytes(std::size_t size) {
    PyObject* object = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size));
    if (object == nullptr) {
        throw nb::python_error();
    }
    return nb::steal<nb::bytes>(object);
}

inline std::span<std::byte> bytes_to_fill(const nb::bytes& object) {
    return {reinterpret_cast<std::byte*>(PyBytes_AsString(object.ptr())), object.size()};
}

#ifdef Py_LIMITED_API
// Copies bytes that are not read again. Their pages go back to the system as it goes on, so that a large payload is not in
// memory twice.
inline void copy_and_give_back(std::span<std::byte> from, std::byte* to) {
    constexpr std::size_t chunk = 1 << 20;
    for (std::size_t done = 0; done < from.size(); done += chunk) {
        const auto part = from.subspan(done, std::min(chunk, from.size() - done));
        std::memcpy(to + done, part.data(), part.size());
#ifdef __linux__
        void* page = part.data();
        std::size_t room = part.size();
        const auto page_size = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
        if (room == chunk && std::align(page_size, page_size, page, room))
            madvise(page, room / page_size * page_size, MADV_DONTNEED);
#endif
    }
}
#endif

// The first `size` bytes of an object that nobody else has seen. The stable ABI has to copy them.
inline nb::bytes shortened(nb::bytes object, std::size_t size) {
#ifdef Py_LIMITED_API
    nb::bytes copy = new_bytes(size);
    copy_and_give_back(bytes_to_fill(object).first(size), bytes_to_fill(copy).data());
    return copy;
#else
    PyObject* bytes = object.release().ptr();
    if (_PyBytes_Resize(&bytes, static_cast<Py_ssize_t>(size)) != 0) throw nb::python_error();
    return nb::steal<nb::bytes>(bytes);
#endif
}

// An uninitialised float32 array. By numpy, which asks for huge pages and lets the caller resize it.
inline ArrayOut new_array(std::size_t n) {
    return nb::cast<ArrayOut>(nb::module_::import_("numpy").attr("empty")(n, "float32"));
}

}  // namespace fedsz

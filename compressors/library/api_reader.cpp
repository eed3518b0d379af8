// fedsz.h: reading.
#include "failure.hpp"
#include "reader.hpp"

using namespace fedsz;
using namespace fedsz::library;

namespace {

const Reader* of(const fedsz_reader* reader) { return reinterpret_cast<const Reader*>(reader); }

}  // namespace

void fedsz_limits_init(fedsz_limits* limits) {
    if (limits) *limits = {1u << 30, 1024, 64u << 20, 1u << 20, 128};
}

fedsz_status fedsz_reader_open(const void* stream, size_t size, const fedsz_limits* limits,
                               fedsz_reader** reader, fedsz_error* error) {
    return guarded(error, [&] {
        require(reader, "reader");
        *reader = nullptr;
        if (size > 0) require(stream, "stream");
        fedsz_limits asked;
        fedsz_limits_init(&asked);
        if (limits) asked = *limits;
        const Octets bytes(static_cast<const uint8_t*>(stream), size);
        *reader = reinterpret_cast<fedsz_reader*>(new Reader(bytes, asked));
    });
}

void fedsz_reader_close(fedsz_reader* reader) { delete reinterpret_cast<Reader*>(reader); }

size_t fedsz_reader_count(const fedsz_reader* reader) {
    return reader ? of(reader)->header().tensors().size() : 0;
}

fedsz_status fedsz_reader_info(const fedsz_reader* reader, size_t index, fedsz_info* info,
                               fedsz_error* error) {
    return guarded(error, [&] {
        require(reader, "reader");
        require(info, "info");
        *info = of(reader)->info(index);
    });
}

int fedsz_reader_reference(const fedsz_reader* reader, uint8_t digest[16]) {
    if (!reader || !of(reader)->header().reference()) return 0;
    if (digest) std::ranges::copy(*of(reader)->header().reference(), digest);
    return 1;
}

size_t fedsz_reader_find(const fedsz_reader* reader, const char* name, size_t name_length) {
    if (!reader || (!name && name_length > 0)) return SIZE_MAX;
    return of(reader)->header().find({name ? name : "", name_length});
}

fedsz_status fedsz_reader_decode(fedsz_reader* reader, size_t index,
                                 const fedsz_reference* reference, void* elements, size_t size,
                                 fedsz_error* error) {
    return guarded(error, [&] {
        require(reader, "reader");
        auto& from = *reinterpret_cast<Reader*>(reader);
        const fedsz_info info = from.info(index);
        if (size != info.size)
            fail(FEDSZ_ERROR_ROOM, "'", std::string_view(info.tensor.name, info.tensor.name_length),
                 "' takes ", uint64_t(info.size), " bytes, and there are ", uint64_t(size));
        check_elements(elements, described(info.tensor), "elements");
        from.decode(index, reinterpret_cast<const Reference*>(reference), elements);
    });
}

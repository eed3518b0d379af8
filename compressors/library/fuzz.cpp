// libFuzzer harness: make fuzz. The input is a stream, whose header's checksum is made to fit.

#include "fuzz.hpp"

#include "fedsz.h"

namespace {

std::uint32_t crc32(const std::uint8_t* bytes, std::size_t n, std::uint32_t before) {
    std::uint32_t crc = ~before;
    for (std::size_t i = 0; i < n; ++i) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320 : 0);
    }
    return ~crc;
}

void seal(std::vector<std::uint8_t>& stream) {
    if (stream.size() < 20) return;
    std::uint32_t length;
    std::memcpy(&length, &stream[12], sizeof length);
    const std::size_t n = std::min<std::size_t>(length, stream.size() - 20);
    const std::uint32_t crc = crc32(&stream[20], n, crc32(stream.data(), 16, 0));
    std::memcpy(&stream[16], &crc, sizeof crc);
}

// The model that seeds refer to: see compressors/seeds.py.
struct Known {
    static constexpr std::uint64_t shape[] = {12, 5, 2};
    float model[120];
    fedsz_reference* reference;

    Known() {
        for (int i = 0; i < 120; ++i) model[i] = float(i * 37 % 97 - 48) / 64;
        const fedsz_tensor tensor{"layer", 5, FEDSZ_FLOAT32, shape, 3};
        const void* held = model;
        fedsz::fuzz::expect(!fedsz_reference_create(&tensor, &held, 1, &reference, nullptr));
    }
};

// What can be decoded is decoded, and what is not says why.
void read(fedsz_reader* reader) {
    static const Known known;
    for (std::size_t i = 0; i < fedsz_reader_count(reader); ++i) {
        fedsz_info info;
        fedsz_error error;
        if (fedsz_reader_info(reader, i, &info, &error) != FEDSZ_OK) {
            fedsz::fuzz::expect(error.message[0] != 0);
            continue;
        }
        fedsz::fuzz::expect(fedsz_reader_find(reader, info.tensor.name, info.tensor.name_length) ==
                            i);
        std::vector<double> elements(info.size / sizeof(double) + 1);
        const fedsz_status status =
            fedsz_reader_decode(reader, i, known.reference, elements.data(), info.size, &error);
        fedsz::fuzz::expect(status == error.status &&
                            (status == FEDSZ_OK || error.message[0] != 0));
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    std::vector<std::uint8_t> stream(data, data + size);
    seal(stream);
    const fedsz_limits limits{1 << 20, 0, 1 << 20, 1 << 12, 0};
    fedsz_reader* reader;
    fedsz_error error;
    if (fedsz_reader_open(stream.data(), stream.size(), &limits, &reader, &error) == FEDSZ_OK)
        read(reader);
    else
        fedsz::fuzz::expect(error.message[0] != 0 && !reader);
    fedsz_reader_close(reader);
    return 0;
}

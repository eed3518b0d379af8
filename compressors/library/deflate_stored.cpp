// A build without zlib.
#include <algorithm>

#include "deflate.hpp"

namespace fedsz::library {

std::uint32_t crc32(Octets bytes, std::uint32_t before) {
    // Four bits at a time: the table of eight takes 1 KB.
    static constexpr std::uint32_t table[16] = {0x00000000, 0x1DB71064, 0x3B6E20C8, 0x26D930AC,
                                                0x76DC4190, 0x6B6B51F4, 0x4DB26158, 0x5005713C,
                                                0xEDB88320, 0xF00F9344, 0xD6D6A3E8, 0xCB61B38C,
                                                0x9B64C2B0, 0x86D3D2D4, 0xA00AE278, 0xBDBDF21C};
    std::uint32_t crc = ~before;
    for (const std::uint8_t byte : bytes) {
        crc ^= byte;
        crc = crc >> 4 ^ table[crc & 15];
        crc = crc >> 4 ^ table[crc & 15];
    }
    return ~crc;
}

Buffer deflated_header(Octets bytes) {
    constexpr std::size_t most = 0xFFFF;  // of a stored block
    const std::size_t blocks = std::max<std::size_t>((bytes.size() + most - 1) / most, 1);
    Buffer out(bytes.size() + 5 * blocks + 6);
    std::uint8_t* to = out.data();
    *to++ = 0x78;
    *to++ = 0x01;
    std::uint32_t low = 1, high = 0;  // Adler-32
    for (std::size_t i = 0; i < blocks; ++i) {
        const Octets block = bytes.subspan(i * most, std::min(most, bytes.size() - i * most));
        const auto n = unsigned(block.size());
        *to++ = i + 1 == blocks;
        for (const unsigned field : {n, ~n}) {
            *to++ = std::uint8_t(field);
            *to++ = std::uint8_t(field >> 8);
        }
        to = std::ranges::copy(block, to).out;
        for (const std::uint8_t byte : block) {
            low = (low + byte) % 65521;
            high = (high + low) % 65521;
        }
    }
    for (const std::uint32_t sum : {high, low}) {
        *to++ = std::uint8_t(sum >> 8);
        *to++ = std::uint8_t(sum);
    }
    return out;
}

}  // namespace fedsz::library

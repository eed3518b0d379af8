// libFuzzer harness: make fuzz. An input is: bits (1 byte), count (2 bytes), packed tokens.

#include "fuzz.hpp"

#include <stdexcept>

#include "corrupt.hpp"
#include "ring.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace fedsz;
    fuzz::Input input(data, size);
    const unsigned bits = input.take<std::uint8_t>();
    std::vector<std::uint32_t> sums(input.take<std::uint16_t>());
    const auto packed = input.rest();
    try {
        ring::unpack_add<std::uint32_t>(packed, bits, sums);
    } catch (const std::invalid_argument&) {
        return 0;
    } catch (const CorruptPayload&) {
        return 0;
    }
    std::vector<std::byte> again(packed.size());
    ring::pack<std::uint32_t>(sums, bits, again);
    fuzz::expect(std::ranges::equal(again, packed));  // no two are of the same tokens
    return 0;
}

// libFuzzer harness: make fuzz. Of all kernels, the decoder of gaps alone reads what others wrote.
// An input is: width (1 byte), count (4 bytes), code.

#include "fuzz.hpp"

#include "corrupt.hpp"
#include "methods.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    fedsz::fuzz::Input input(data, size);
    const auto width = input.take<std::uint8_t>();
    const std::size_t count = input.take<std::uint32_t>();
    const auto code = input.rest();
    if (count > 8 * code.size()) return 0;  // callers have as many bits, or none of these gaps
    std::vector<std::int64_t> gaps(count);
    try {
        fedsz::methods::decode_gaps(code, width, gaps);
    } catch (const fedsz::CorruptPayload&) {
        return 0;
    }
    for (const std::int64_t gap : gaps) fedsz::fuzz::expect(gap >= 0);
    return 0;
}

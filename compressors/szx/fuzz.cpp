// libFuzzer harness: make fuzz.

#include "fuzz.hpp"

#include "corrupt.hpp"
#include "szx.hpp"

namespace {

using namespace fedsz;

void decode(std::span<const std::byte> payload, std::size_t n) {
    try {
        szx::check_size(payload, n);
        std::vector<float> x(n);
        szx::decode(payload, x);
    } catch (const CorruptPayload&) {
        return;
    }
}

void round_trip(const std::vector<float>& x, double bound) {
    const szx::Plan plan = szx::plan(x, bound);
    std::vector<std::byte> payload(plan.size);
    szx::write(x, plan, payload);
    std::vector<float> y(x.size());
    szx::decode(payload, y);
    fuzz::expect_within(x, y, bound, plan.max_error, [](float v) { return v; });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    fuzz::Input input(data, size);
    if (input.take<std::uint8_t>() % 2 == 0) {
        const auto n = input.take<std::uint32_t>();
        decode(input.rest(), n);
    } else if (const auto bound = input.take<double>(); bound >= 0) {
        round_trip(input.elements(), bound);
    }
    return 0;
}

// One call of uniform on float32 from a file, for callgrind to count: benchmarks/kernels.py.
//
//   kernels encode|decode|accumulate LEVEL EFFORT ROWS COLUMNS BOUND FILE
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "kernels.hpp"
#include "uniform.hpp"

int main(int argc, char** argv) {
    using namespace fedsz::uniform;
    if (argc != 8) return 2;
    const std::string way = argv[1], level = argv[2];
    Settings settings;
    settings.effort = unsigned(std::atoi(argv[3]));
    for (std::size_t i = 0; i < levels<Built>().count; ++i)
        if (level == levels<Built>().level[i]->name) settings.kernels = levels<Built>().level[i];
    if (!settings.kernels) {
        std::cerr << "no " << level << " here\n";
        return 2;
    }
    Geometry geometry;
    geometry.rows = std::size_t(std::atoll(argv[4]));
    geometry.columns = std::size_t(std::atoll(argv[5]));

    std::vector<float> x(geometry.size()), y(x.size());
    std::ifstream file(argv[7], std::ios::binary);
    file.read(reinterpret_cast<char*>(x.data()), std::streamsize(4 * x.size()));
    if (!file) return 2;

    std::vector<std::uint8_t> payload(capacity(Dtype::float32, x.size()));
    payload.resize(encode(Dtype::float32, x.data(), geometry, std::atof(argv[6]), settings, payload).size);
    const auto* bytes = payload.data();
    if (way == "decode") decode(Dtype::float32, {bytes, payload.size()}, x.size(), settings, y.data());
    if (way == "accumulate")
        accumulate(Dtype::float32, {bytes, payload.size()}, x.size(), 0.25, settings, y.data());
    std::cout << payload.size() << '\n';
}

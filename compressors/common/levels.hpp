// Which instruction sets there are kernels for: what every machine has, AVX2, and AVX-512. Nothing
// here may be called by sources that are compiled for one of them; see CMakeLists.txt.
#pragma once

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <vector>

namespace fedsz {

// How many of these three this machine can run. A codec may take fewer of a set's extensions.
inline std::size_t levels_here() {
#ifdef __x86_64__
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("popcnt")) return 1;
    const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512vbmi2");
    return wide ? 3 : 2;
#else
    return 1;
#endif
}

// The kernels that a build has and this machine can run, the best one last. All of them compute the
// same; a name says which they are.
template <class Kernels>
struct Levels {
    const Kernels* level[3]{};
    std::size_t count;

    Levels(std::initializer_list<const Kernels*> built)
        : count(std::min(built.size(), levels_here())) {
        std::copy_n(built.begin(), count, level);
    }

    const Kernels& best() const { return *level[count - 1]; }

    // Those of a name; null, for the best, where it is empty. Throws std::invalid_argument where
    // there are none.
    const Kernels* named(const std::string& name) const {
        for (std::size_t i = 0; i < count; ++i)
            if (level[i]->name == name) return level[i];
        if (!name.empty()) throw std::invalid_argument("no such level here: " + name);
        return nullptr;
    }

    std::vector<std::string> names() const {
        std::vector<std::string> all;
        for (std::size_t i = 0; i < count; ++i) all.emplace_back(level[i]->name);
        return all;
    }
};

// Those of a struct Built with the constants baseline, avx2 and avx512. Only x86-64 needs the others.
template <class Built>
const auto& levels() {
    static const Levels found = {
        &Built::baseline,
#ifdef __x86_64__
        &Built::avx2,
        &Built::avx512,
#endif
    };
    return found;
}

}  // namespace fedsz

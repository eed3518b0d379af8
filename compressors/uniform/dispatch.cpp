#include "kernels.hpp"
#include "payload.hpp"

namespace fedsz::uniform {

const Levels& levels() {
    static const Levels found = [] {
        Levels all{{&kBaseline}, 1};
#ifdef __x86_64__
        __builtin_cpu_init();
        if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("popcnt")) {
            all.level[all.count++] = &kAvx2;
            if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                __builtin_cpu_supports("avx512vbmi2"))
                all.level[all.count++] = &kAvx512;
        }
#endif
        return all;
    }();
    return found;
}

const Kernels& kernels_of(const Settings& settings) {
    const Levels& all = levels();
    return settings.kernels ? *settings.kernels : *all.level[all.count - 1];
}

}  // namespace fedsz::uniform

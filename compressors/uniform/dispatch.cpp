#include "kernels.hpp"
#include "payload.hpp"

namespace fedsz::uniform {

const Levels<Kernels>& levels() {
    static const Levels<Kernels> found = {
        &kBaseline,
#ifdef __x86_64__
        &kAvx2,
        &kAvx512,
#endif
    };
    return found;
}

const Kernels& kernels_of(const Settings& settings) {
    return settings.kernels ? *settings.kernels : levels().best();
}

}  // namespace fedsz::uniform

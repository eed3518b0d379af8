#include "kernels.hpp"

namespace fedsz::eigen {

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

}  // namespace fedsz::eigen

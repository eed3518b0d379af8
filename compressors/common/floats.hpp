// The floating-point environment that the codecs count on.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace fedsz {

// Gives its scope IEEE arithmetic, and the host its own settings back.
//
// A host that flushes subnormals to zero (torch.set_flush_denormal, a library built with -ffast-math)
// or rounds another way would otherwise decode other values than the encoder has checked. Put it
// around calls into another source file: inside one, the compiler may move arithmetic across it.
class DefaultFloats {
public:
    DefaultFloats() : saved_(control()) { control(defaults); }
    ~DefaultFloats() { control(saved_); }
    DefaultFloats(const DefaultFloats&) = delete;
    DefaultFloats& operator=(const DefaultFloats&) = delete;

private:
#if defined(__x86_64__)
    using Word = unsigned;
    static constexpr Word defaults = 0x1F80;  // MXCSR: exceptions masked, to nearest, FTZ, DAZ off
    static Word control() { return _mm_getcsr(); }
    static void control(Word word) { _mm_setcsr(word); }
#elif defined(__aarch64__)
    using Word = std::uint64_t;
    static constexpr Word defaults = 0;  // FPCR: likewise
    static Word control() {
        Word word;
        asm volatile("mrs %0, fpcr" : "=r"(word));
        return word;
    }
    static void control(Word word) { asm volatile("msr fpcr, %0" : : "r"(word) : "memory"); }
#else
    // Nothing is known to set; the encoders' checks still see what this machine computes.
    using Word = unsigned;
    static constexpr Word defaults = 0;
    static Word control() { return 0; }
    static void control(Word) {}
#endif

    Word saved_;
};

}  // namespace fedsz

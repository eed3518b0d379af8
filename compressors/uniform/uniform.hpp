// `uniform`: a uniform quantiser and static rANS with contexts from scales. docs/format.md has the
// payload bit by bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "bytes.hpp"
#include "contexts.hpp"
#include "element.hpp"

namespace fedsz::uniform {

// All that is below throws std::invalid_argument for settings, geometries and bounds out of range,
// and for elements that do not lie where their type wants them.

struct Settings {
    unsigned effort = 5;               // 0 (fastest) to 9 (smallest)
    unsigned threads = 1;              // 1 to 1024, at most; decides nothing but time
    const Kernels* kernels = nullptr;  // null: the best this machine has
};

struct Encoded {
    std::size_t size;  // of the payload
    double max_error;  // the largest |x - y| of all finite elements
    double left;       // the sum of squares of what is left out; 0 unless that is asked for
};

// What earlier rounds have left out of an array of float32 or float64: weight times each of as many
// elements is added to it, or nothing.
struct Residual {
    const void* elements = nullptr;
    double weight = 1;
};

// What encode() may need for n elements, whatever they are.
std::size_t capacity(Dtype dtype, std::size_t n);

// Codes geometry.size() elements at x so that none moves by more than `bound` (0 or more) once it
// has been decoded to its own dtype; NaN and infinities come back bit by bit. `payload` has the
// capacity for them. With a base, of float32 or float64, as many elements of it: codes x - base,
// rounded, in its place. A `step` above 0 is the grid's: whatever the bound, its multiples (but for
// -0) come back exactly, and all other elements are exceptions. With a residual, what is coded in
// place of x is x + weight * residual. What a decoder with the same base lacks of that goes to
// `left`, as many elements in memory of their own, unless it is null.
Encoded encode(Dtype dtype, const void* x, const Geometry& geometry, double bound,
               const Settings& settings, std::span<std::uint8_t> payload,
               const void* base = nullptr, double step = 0, const Residual& residual = {},
               void* left = nullptr);

// Throws CorruptPayload for a payload that encode() does not write for n elements of that dtype.
// With a base as above, y becomes base + what the payload holds, rounded.
void decode(Dtype dtype, Bytes payload, std::size_t n, const Settings& settings, void* y,
            const void* base = nullptr);

// A payload all of which has been decoded, and which is kept as a byte an element at most.
class Opened {
public:
    virtual ~Opened() = default;

    // The sum of y^2 or, with a base, of (y - base)^2, in the type of the sums and the same for any
    // number of threads; not finite where one of these is not.
    virtual double energy() const = 0;

    // Adds weight * y to n sums, of float64 for float64 and of float32 for all others, as decoding,
    // multiplying and adding would, but without an array for y. Nothing in the payload can stop it.
    virtual void add(double weight, void* sums) const = 0;
};

// As decode(), which refuses the same payloads; with a base of any dtype, the energy is of the
// distance from it. The payload must outlive what is returned.
std::unique_ptr<Opened> open(Dtype dtype, Bytes payload, std::size_t n, const Settings& settings,
                             const void* base = nullptr);

// Opens a payload and adds it; if it throws, no sum has changed.
void accumulate(Dtype dtype, Bytes payload, std::size_t n, double weight, const Settings& settings,
                void* sums);

// Two arrays of float32 or float64, and what the elements of the first are above the second's. With
// a residual, m is x + weight * residual; else it is x.
struct Comparison {
    double low, high;        // the extremes of m, and
    double least, greatest;  // of m - base: NaN or infinite if any element is; NaN for no elements
    double deviation;        // the standard deviation of x - base, and
    double step, meant;      // the sums of squares of x - base and of m - base: 0 if not asked for
};

// One pass over all; the same on all machines, and with any number of threads.
Comparison compare(Dtype dtype, const void* x, const void* base, std::size_t n, Asked asked,
                   const Settings& settings, const Residual& residual = {});

// How far values lie apart, in double and the same on all machines: what decides error bounds.

// The greatest finite element less the least; 0 if there are none.
double value_range(Dtype dtype, const void* x, std::size_t n, const Settings& settings);

// The standard deviation of the finite elements; 0 if there are none.
double standard_deviation(Dtype dtype, const void* x, std::size_t n, const Settings& settings);

// The sum of squares of x or, with a base of its dtype, of x - base, in the type of their sums; not
// finite where one of these is not. It is what `compare` finds, with any number of threads. If
// `masked`, what is not finite in a base, and the same in x, is no difference.
double energy(Dtype dtype, const void* x, const void* base, std::size_t n, bool masked,
              const Settings& settings);

}  // namespace fedsz::uniform

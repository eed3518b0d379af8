// Tensors that a chain of methods codes: coefficients in the basis of a history, by `uniform`. See
// fedsz/core/chained.py.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "arena.hpp"
#include "chain_text.hpp"
#include "feedback.hpp"
#include "history.hpp"

namespace fedsz::library {

// A sender's chain.
class Chain {
public:
    // Copies its text; throws Failure for one that this library does not write.
    explicit Chain(const fedsz_chain& given);

    // As streams say it.
    std::string_view text() const { return {text_.data(), text_.size()}; }

    std::uint64_t seed, round, sender;

    // The payload of a tensor that is not empty; of its difference from the task's base if there is
    // one. Nothing where it is not finite, cannot be coded, or would hardly save anything. With
    // feedback, `fed` has what that starts from and leaves: elements of the dtype that differences
    // are made in. What is not coded keeps what it had.
    std::optional<Buffer> encode(const Task& task, std::string_view name, const void* x,
                                 const Fed* fed) const;

private:
    template <class E>
    std::optional<Buffer> encode_as(const Task& task, std::string_view name, const void* x,
                                    const Fed* fed) const;

    Vector<char> text_;
    BoundOf bound_of_;
    double bound_, step_;
    unsigned effort_;
    const History* history_;    // null without a basis
    std::optional<Digest> of_;  // its digest, as the stream says it
};

// Throws Failure for a chain that this library does not write.
ChainText chain_to_write(const fedsz_chain& given);

// Fills y with a tensor that a payload holds; with a base, of differences from it. Throws Failure
// for a chain that this library does not decode, for coefficients of another history, and for
// damage; CorruptPayload for that of `uniform`.
void decode_chained(std::string_view chain, const History* history, const Described& tensor,
                    Octets payload, const void* base, void* y);

}  // namespace fedsz::library

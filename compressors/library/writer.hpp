// Tensors -> a stream.
#pragma once

#include <cstddef>

#include "arena.hpp"
#include "bound.hpp"
#include "format.hpp"
#include "msgpack.hpp"
#include "names.hpp"
#include "reference.hpp"

namespace fedsz::library {

// Throws Failure for settings that a writer does not take.
void check(const fedsz_settings& settings);

class Writer {
public:
    explicit Writer(const fedsz_settings& settings);

    // Once `tensor` is coded, nothing can fail any more.
    fedsz_written add(const fedsz_tensor& tensor, const void* data, const void* residual,
                      void* left);

    // Returns the length of the stream.
    std::size_t finish();
    bool finished() const { return header_.size() > 0; }

    // Calls use(bytes) with all pieces of a stream that has ended, for as long as that returns 0.
    template <class Use>
    int pieces(const Use& use) const {
        if (const int stopped = use(Octets(header_.data(), header_.size()))) return stopped;
        for (const Part& part : parts_)
            if (const int stopped = use(Octets(part.data.data(), part.data.size()))) return stopped;
        return 0;
    }

private:
    struct Member {
        std::uint32_t index;  // of its tensor
        std::size_t at;       // where its bytes begin among those of its group
        std::size_t count;
        bool floating, complex;
        const void* base;
    };
    struct Part {
        std::uint8_t codec, transform;
        bool lossy;
        double bound;
        Buffer data;
        Vector<std::uint32_t> members;
    };
    // Small lossless tensors of an item size, whose payload comes at the end.
    struct Group {
        std::size_t item;
        Vector<std::uint8_t> bytes;
        Vector<Member> members;
    };

    std::string_view name_of(std::size_t i) const {
        return {&names_[0] + ends_[i], ends_[i + 1] - ends_[i]};
    }
    const void* base_of(const Described& tensor) const;
    bool may_be_lossy(const Described& tensor) const;
    Part lossless(Octets bytes, std::size_t item, std::span<const Member> members) const;
    void record(const Described& tensor);
    void write_header();

    fedsz_settings settings_;
    const Reference* reference_;
    Packer tensors_;
    Vector<char> names_;
    Vector<std::size_t> ends_;  // of names; the first is where they begin
    NameIndex index_;
    Vector<Part> parts_;
    Vector<Group> groups_;
    Buffer header_;  // with its prefix
};

// The rules by which a tensor's name lets it be lossy, see fedsz_rule.
bool rule_takes(fedsz_rule rule, std::string_view name, std::size_t dimensions);

}  // namespace fedsz::library

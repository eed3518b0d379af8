// Elements that are stored exactly, behind all others.
#pragma once

#include <cstddef>

#include "bytes.hpp"
#include "memory.hpp"
#include "payload.hpp"

namespace fedsz::uniform {

// Those of each chunk: how many, their positions as gaps, and their values.
template <class E>
void write_exceptions(const Vector<Vector<Exception<E>>>& chunks, Writer& writer) {
    std::size_t count = 0, next = 0;
    for (const auto& chunk : chunks) count += chunk.size();
    writer.varint(count);
    for (const auto& chunk : chunks)
        for (const auto& exception : chunk) {
            writer.varint(exception.position - next);
            next = exception.position + 1;
        }
    for (const auto& chunk : chunks)
        for (const auto& exception : chunk) writer.put(exception.value);
}

}  // namespace fedsz::uniform

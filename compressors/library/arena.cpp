#include "arena.hpp"

#include <cstdlib>
#include <new>

namespace fedsz::library {

// Stands before the bytes of a block or gap; the next one follows them.
struct alignas(16) Arena::Block {
    std::size_t bytes;
    bool used;

    Block* next() { return reinterpret_cast<Block*>(reinterpret_cast<char*>(this + 1) + bytes); }
    static Block* of(void* bytes) { return static_cast<Block*>(bytes) - 1; }
};

namespace {

constexpr std::size_t kGrain = 16;

constexpr std::size_t rounded(std::size_t bytes) { return (bytes + kGrain - 1) & ~(kGrain - 1); }

}  // namespace

Arena::Arena(void* start, std::size_t size) {
    const auto from = reinterpret_cast<std::uintptr_t>(start);
    const std::size_t skipped = rounded(from) - from;
    if (size < skipped + sizeof(Block)) return;
    const std::size_t bytes = (size - skipped - sizeof(Block)) & ~(kGrain - 1);
    first_ = new (static_cast<char*>(start) + skipped) Block{bytes, false};
    end_ = first_->next();
}

void* Arena::allocate(std::size_t bytes) {
    if (bytes > std::size_t(-1) - kGrain) throw std::bad_alloc();
    bytes = rounded(bytes);
    for (Block* block = first_; block != end_; block = block->next())
        if (!block->used && block->bytes >= bytes) {
            block->used = true;
            shrink(block + 1, bytes);
            return block + 1;
        }
    throw std::bad_alloc();
}

void Arena::release(void* bytes) noexcept {
    if (!bytes) return;
    Block::of(bytes)->used = false;
    join_gaps();
}

void Arena::shrink(void* bytes, std::size_t size) noexcept {
    Block* const block = Block::of(bytes);
    const std::size_t kept = rounded(size);
    if (block->bytes - kept < sizeof(Block)) return;
    const std::size_t left = block->bytes - kept - sizeof(Block);
    block->bytes = kept;
    new (block->next()) Block{left, false};
    join_gaps();
}

void Arena::join_gaps() noexcept {
    for (Block* block = first_; block != end_;) {
        Block* const next = block->next();
        if (next != end_ && !block->used && !next->used)
            block->bytes += sizeof(Block) + next->bytes;
        else
            block = next;
    }
}

Buffer::Buffer(std::size_t size) : size_(size) {
    if (Memory* const memory = Memory::current())
        data_ = static_cast<std::uint8_t*>(memory->allocate(size));
    else if (data_ = static_cast<std::uint8_t*>(std::malloc(size ? size : 1)); !data_)
        throw std::bad_alloc();
}

Buffer::~Buffer() {
    if (Memory* const memory = Memory::current())
        memory->release(data_);
    else
        std::free(data_);
}

void Buffer::shrink(std::size_t size) noexcept {
    size_ = size;
    if (Memory* const memory = Memory::current())
        static_cast<Arena*>(memory)->shrink(data_, size);  // the library has no other
    else if (void* const moved = std::realloc(data_, size ? size : 1))
        data_ = static_cast<std::uint8_t*>(moved);
}

}  // namespace fedsz::library

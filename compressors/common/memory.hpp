// Where codecs put what they need for a while: on the heap, or where a caller wants it.
#pragma once

#include <cstddef>
#include <new>
#include <vector>

namespace fedsz {

// A place that is not the heap.
class Memory {
public:
    // Aligned for any scalar; throws std::bad_alloc.
    virtual void* allocate(std::size_t bytes) = 0;
    virtual void release(void* block) noexcept = 0;

    static Memory* current() noexcept { return here_; }  // null: the heap

protected:
    ~Memory() = default;

private:
    friend class InMemory;
#ifdef FEDSZ_NO_THREADS
    static inline Memory* here_ = nullptr;
#else
    static inline thread_local Memory* here_ = nullptr;
#endif
};

// For its scope, and on this thread alone, codecs allocate in `memory` (null: on the heap). Nothing
// that they have allocated there may outlive the scope, or be given to another thread.
class InMemory {
public:
    explicit InMemory(Memory* memory) noexcept : before_(Memory::here_) { Memory::here_ = memory; }
    ~InMemory() { Memory::here_ = before_; }
    InMemory(const InMemory&) = delete;
    InMemory& operator=(const InMemory&) = delete;

private:
    Memory* before_;
};

template <class T>
struct Allocator {
    using value_type = T;

    Allocator() = default;
    template <class U>
    Allocator(const Allocator<U>&) noexcept {}

    T* allocate(std::size_t n) {
        if (n > std::size_t(-1) / sizeof(T)) throw std::bad_array_new_length();
        Memory* const memory = Memory::current();
        return static_cast<T*>(memory ? memory->allocate(n * sizeof(T))
                                      : ::operator new(n * sizeof(T)));
    }
    void deallocate(T* block, std::size_t) noexcept {
        if (Memory* const memory = Memory::current())
            memory->release(block);
        else
            ::operator delete(block);
    }
    friend bool operator==(const Allocator&, const Allocator&) { return true; }
};

template <class T>
using Vector = std::vector<T, Allocator<T>>;

}  // namespace fedsz

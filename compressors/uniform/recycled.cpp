#include "recycled.hpp"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <utility>

namespace fedsz::uniform {
namespace {

struct Spare {
    std::unique_ptr<std::uint8_t[]> bytes;
    std::size_t size = 0;
};

// What waits, the longest waiting first; of a fixed number, so that giving back takes no memory.
class Spares {
public:
    // A fork has no other threads: one that held the guard would hold it for ever.
    static void lock() { kept().guard_.lock(); }
    static void unlock() { kept().guard_.unlock(); }

    // Never destroyed: memory may be given back while a process ends.
    static Spares& kept() {
        static Spares& spares = *new Spares;
        return spares;
    }

    std::unique_ptr<std::uint8_t[]> take(std::size_t n) {
        const std::lock_guard lock(guard_);
        const auto found = std::find_if(waiting_.begin(), waiting_.begin() + count_,
                                        [n](const Spare& spare) { return spare.size == n; });
        return found == waiting_.begin() + count_ ? nullptr : remove(found);
    }

    void put(std::unique_ptr<std::uint8_t[]> bytes, std::size_t n) {
        if (n > kMostSpare) return;
        const std::lock_guard lock(guard_);
        while (count_ == std::ptrdiff_t(waiting_.size()) || total_ + n > kMostSpare)
            remove(waiting_.begin());
        waiting_[std::size_t(count_++)] = {std::move(bytes), n};
        total_ += n;
    }

private:
    std::unique_ptr<std::uint8_t[]> remove(std::array<Spare, 256>::iterator spare) {
        auto bytes = std::move(spare->bytes);
        total_ -= spare->size;
        std::move(spare + 1, waiting_.begin() + count_--, spare);
        return bytes;
    }

    std::mutex guard_;
    std::array<Spare, 256> waiting_;
    std::ptrdiff_t count_ = 0;
    std::size_t total_ = 0;
};

const int at_fork = pthread_atfork(Spares::lock, Spares::unlock, Spares::unlock);

}  // namespace

RecycledBytes::RecycledBytes(std::size_t n) : bytes_(Spares::kept().take(n)), size_(n) {
    if (!bytes_) bytes_ = std::make_unique_for_overwrite<std::uint8_t[]>(n);
}

RecycledBytes::~RecycledBytes() {
    if (bytes_) Spares::kept().put(std::move(bytes_), size_);
}

}  // namespace fedsz::uniform

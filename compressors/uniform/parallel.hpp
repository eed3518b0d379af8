// Splitting work over threads, in a way that no result can depend on.
#pragma once

#include <cstddef>

#ifndef FEDSZ_NO_THREADS
#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "floats.hpp"
#endif

namespace fedsz::uniform {

#ifdef FEDSZ_NO_THREADS

// On a machine without threads.
template <class Task>
void parallel_for(std::size_t count, unsigned, const Task& task) {
    for (std::size_t i = 0; i < count; ++i) task(0u, i);
}

#else

// Calls task(worker, i) for i below count, on at most `threads` threads; worker is below `threads`.
// Rethrows the first exception, once all have ended.
template <class Task>
void parallel_for(std::size_t count, unsigned threads, const Task& task) {
    const auto workers = unsigned(std::min<std::size_t>(threads, count));
    if (workers <= 1) {
        for (std::size_t i = 0; i < count; ++i) task(0u, i);
        return;
    }
    std::atomic<std::size_t> next{0};
    std::exception_ptr failure;
    std::mutex guard;
    const auto work = [&](unsigned worker) {
        const DefaultFloats floats;
        try {
            for (std::size_t i; (i = next.fetch_add(1)) < count;) task(worker, i);
        } catch (...) {
            const std::lock_guard lock(guard);
            if (!failure) failure = std::current_exception();
            next = count;
        }
    };
    std::vector<std::thread> helpers;
    try {
        helpers.reserve(workers - 1);  // so that none fails to grow with threads that run in it
        for (unsigned worker = 1; worker < workers; ++worker) helpers.emplace_back(work, worker);
    } catch (const std::exception&) {
        // There are no more threads to be had, or no memory for one: those there are do it all.
    }
    work(0);
    for (std::thread& helper : helpers) helper.join();
    if (failure) std::rethrow_exception(failure);
}

#endif

}  // namespace fedsz::uniform

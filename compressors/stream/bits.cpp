#include "bits.hpp"

#include <algorithm>
#include <cstring>

namespace fedsz::stream {
namespace {

constexpr std::size_t kSome = 512;  // elements at a time

// An integer of `Item` bytes in the order of the values from their bits, and back.
template <class Item>
Item ordered(Item bits, Item magnitude) {
    constexpr unsigned sign = 8 * sizeof(Item) - 1;
    return Item(bits ^ (Item(0 - Item(bits >> sign)) & magnitude));
}

// Of floats, the bits of their magnitudes: what is turned around below 0.
template <class Item>
Item magnitude_of(Items items) {
    return items.floating ? Item(Item(~Item(0)) >> 1) : Item(0);
}

template <class Item>
void difference_as(Items items, const std::uint8_t* x, const std::uint8_t* base,
                   std::uint8_t* planes, std::size_t plane) {
    constexpr unsigned sign = 8 * sizeof(Item) - 1;
    const Item magnitude = magnitude_of<Item>(items);
    Item some[kSome], start[kSome];
    for (std::size_t at = 0; at < items.count; at += kSome, planes += kSome) {
        const std::size_t n = std::min(kSome, items.count - at);
        std::memcpy(some, x + at * sizeof(Item), n * sizeof(Item));
        std::memcpy(start, base + at * sizeof(Item), n * sizeof(Item));
        for (std::size_t i = 0; i < n; ++i) {
            const Item step = Item(ordered(some[i], magnitude) - ordered(start[i], magnitude));
            some[i] = Item(Item(step << 1) ^ Item(0 - Item(step >> sign)));  // zigzag
        }
        for (std::size_t byte = 0; byte < sizeof(Item); ++byte)
            for (std::size_t i = 0; i < n; ++i)
                planes[byte * plane + i] = std::uint8_t(some[i] >> 8 * byte);
    }
}

template <class Item>
void move_as(Items items, const std::uint8_t* planes, std::size_t plane, const std::uint8_t* base,
             std::uint8_t* y) {
    const Item magnitude = magnitude_of<Item>(items);
    Item some[kSome], start[kSome];
    for (std::size_t at = 0; at < items.count; at += kSome, planes += kSome) {
        const std::size_t n = std::min(kSome, items.count - at);
        std::memcpy(start, base + at * sizeof(Item), n * sizeof(Item));
        std::fill_n(some, n, Item(0));
        for (std::size_t byte = 0; byte < sizeof(Item); ++byte)
            for (std::size_t i = 0; i < n; ++i)
                some[i] = Item(some[i] | Item(Item(planes[byte * plane + i]) << 8 * byte));
        for (std::size_t i = 0; i < n; ++i) {
            const Item step = Item(Item(some[i] >> 1) ^ Item(0 - Item(some[i] & 1)));
            some[i] = ordered(Item(step + ordered(start[i], magnitude)), magnitude);
        }
        std::memcpy(y + at * sizeof(Item), some, n * sizeof(Item));
    }
}

// Calls use() with an unsigned integer of so many bytes.
template <class Use>
void with_item(std::size_t bytes, const Use& use) {
    switch (bytes) {
        case 1: return use(std::uint8_t());
        case 2: return use(std::uint16_t());
        case 4: return use(std::uint32_t());
        default: return use(std::uint64_t());
    }
}

}  // namespace

void bit_difference(Items items, const std::uint8_t* x, const std::uint8_t* base,
                    std::uint8_t* planes, std::size_t plane) {
    with_item(items.bytes,
              [&]<class Item>(Item) { difference_as<Item>(items, x, base, planes, plane); });
}

void move_bits(Items items, const std::uint8_t* planes, std::size_t plane,
               const std::uint8_t* base, std::uint8_t* y) {
    with_item(items.bytes, [&]<class Item>(Item) { move_as<Item>(items, planes, plane, base, y); });
}

}  // namespace fedsz::stream

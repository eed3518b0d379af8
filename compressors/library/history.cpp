#include "history.hpp"

#include <algorithm>

#include "failure.hpp"
#include "numbers.hpp"

namespace fedsz::library {
namespace {

constexpr double kDecay = 0.9;  // of what earlier broadcasts have shown, for each later one
constexpr std::size_t kBlock = 64, kShown = 8;

}  // namespace

Axes::Axes(Shape shape) {
    const std::uint64_t all = count_of(shape);
    if (shape.size() < 2 || all == 0) return;
    const auto first = std::size_t(shape[0]), second = std::size_t(shape[1]);
    const std::size_t third = std::size_t(all) / first / second;
    for (const eigen::Axis& side : {eigen::Axis{1, first, second * third, 0},
                                    {first, second, third, 0},
                                    {first * second, third, 1, 0}}) {
        const std::size_t block = std::min(kBlock, side.outer * side.inner);
        if (side.length < 2 || block < 2) continue;
        axis[count] = side;
        axis[count++].block = block;
    }
}

std::size_t Axes::squares() const {
    std::size_t sum = 0;
    for (std::size_t i = 0; i < count; ++i) sum += axis[i].squares();
    return sum;
}

void History::advance(const Reference& before, const Reference& now) {
    Vector<Known> moved;
    Vector<std::size_t> other;  // which of them now have axes that nothing has shown
    const auto name = [this](std::size_t i) { return name_of(i); };
    for (std::size_t i = 0; i < now.size(); ++i) {
        const Described tensor = now.tensor(i);
        const std::size_t at = before.find(tensor.name);
        if (at == NameIndex::npos ||
            !std::ranges::equal(before.tensor(at).shape, tensor.shape)) {
            const std::size_t known = index_.find(tensor.name, name);
            if (known != NameIndex::npos) other.push_back(known);
            continue;
        }
        if (tensor.dtype >= kLossyCount || Axes(tensor.shape).count == 0) continue;
        if (before.tensor(at).dtype != tensor.dtype)
            fail(FEDSZ_ERROR_ARGUMENT, "'", tensor.name, "' is of another dtype than before");
        if (auto known = grown(tensor, before.elements(at), now.elements(i)))
            moved.push_back(std::move(*known));
    }
    stream::Xxh3 hash;
    if (digest_) hash.add(digest_->data(), digest_->size());
    for (const Reference* model : {&before, &now})
        hash.add(model->digest().data(), model->digest().size());
    known_.reserve(known_.size() + moved.size());
    index_.reserve(known_.size() + moved.size());
    // Nothing can fail from here on.
    for (const std::size_t i : other) {
        known_[i].axes.count = 0;
        known_[i].products.clear();
        known_[i].vectors.clear();
    }
    for (Known& known : moved) {
        const std::size_t at = index_.find({known.name.data(), known.name.size()}, name);
        if (at == NameIndex::npos) {
            known_.push_back(std::move(known));
            index_.add(std::uint32_t(known_.size() - 1), name);
        } else {
            known_[at] = std::move(known);
        }
    }
    digest_ = hash.digest();
}

// A tensor whose step is 0 or not finite stays as it is.
std::optional<History::Known> History::grown(const Described& tensor, const void* before,
                                             const void* now) const {
    const Axes axes(tensor.shape);
    if (axes.count == 0) return std::nullopt;
    Known next{{tensor.name.begin(), tensor.name.end()}, axes, {}, {}};
    if (const Known* const last = find(tensor.name, axes))
        next.products = last->products;
    else
        next.products.resize(axes.squares());
    const bool moved = visit(Dtype(tensor.dtype), [&]<class E>(E) {
        using C = typename E::Compute;
        const auto* const from = static_cast<const typename E::Stored*>(before);
        const auto* const to = static_cast<const typename E::Stored*>(now);
        Vector<C> step(tensor.count);
        for (std::size_t i = 0; i < tensor.count; ++i)
            step[i] = E::widen(to[i]) - E::widen(from[i]);
        std::span<float> products(next.products);
        for (std::size_t i = 0; i < axes.count; ++i) {
            const std::size_t squares = axes.axis[i].squares();
            if (!eigen::add_products<C>(step, axes.axis[i], kDecay, products.first(squares)))
                return false;
            products = products.subspan(squares);
        }
        return true;
    });
    if (!moved) return std::nullopt;
    next.vectors.resize(next.products.size());
    std::size_t at = 0;
    for (std::size_t i = 0; i < axes.count; ++i) {
        const std::size_t squares = axes.axis[i].squares();
        eigen::eigenvectors(std::span(next.products).subspan(at, squares), axes.axis[i],
                            std::span(next.vectors).subspan(at, squares));
        at += squares;
    }
    return next;
}

// One whose axes are cut into other blocks is not the same tensor.
const History::Known* History::find(std::string_view name, const Axes& axes) const {
    const std::size_t i = index_.find(name, [this](std::size_t j) { return name_of(j); });
    if (i == NameIndex::npos) return nullptr;
    const Axes& own = known_[i].axes;
    bool same = own.count == axes.count;
    for (std::size_t a = 0; same && a < axes.count; ++a)
        same = own.axis[a].length == axes.axis[a].length && own.axis[a].block == axes.axis[a].block;
    return same ? &known_[i] : nullptr;
}

std::string_view History::shown(std::array<char, 16>& digits) const {
    if (!digest_) return {};
    static_assert(sizeof digits == 2 * kShown);
    for (std::size_t i = 0; i < kShown; ++i) {
        digits[2 * i] = "0123456789abcdef"[(*digest_)[i] >> 4];
        digits[2 * i + 1] = "0123456789abcdef"[(*digest_)[i] & 15];
    }
    return {digits.data(), digits.size()};
}

std::span<const float> History::vectors(std::string_view name, const Axes& axes) const {
    const Known* const known = find(name, axes);
    return known ? std::span<const float>(known->vectors) : std::span<const float>();
}

template <class T>
void rotate(std::span<T> x, const Axes& axes, std::span<const float> vectors, bool back) {
    if (vectors.empty()) return;
    std::size_t at = back ? vectors.size() : 0;
    for (std::size_t k = 0; k < axes.count; ++k) {
        const eigen::Axis& axis = axes.axis[back ? axes.count - 1 - k : k];
        const std::size_t squares = axis.squares();
        if (back) at -= squares;
        eigen::rotate(x, axis, vectors.subspan(at, squares), back);
        if (!back) at += squares;
    }
}

template void rotate(std::span<float>, const Axes&, std::span<const float>, bool);
template void rotate(std::span<double>, const Axes&, std::span<const float>, bool);

}  // namespace fedsz::library

#include "writer.hpp"

#include <algorithm>
#include <cstring>

#include "bits.hpp"
#include "deflate.hpp"
#include "failure.hpp"
#include "feedback.hpp"
#include "lossless.hpp"

namespace fedsz::library {
namespace {

constexpr std::size_t kSharedBelow = std::size_t(1)
                                     << 16;  // bytes of a tensor that shares a payload

}  // namespace

bool rule_takes(fedsz_rule rule, std::string_view name, std::size_t dimensions) {
    if (rule == FEDSZ_RULE_PAPER) return name.find("weight") != name.npos;
    if (rule == FEDSZ_RULE_NDIM) return dimensions >= 2;
    for (const std::string_view statistic :
         {"running_mean", "running_var", "moving_mean", "moving_variance"})
        if (name.ends_with(statistic)) return false;
    if (name.find("batch_stats") != name.npos) return false;
    const bool number =
        !name.empty() && std::ranges::all_of(name, [](char c) { return c >= '0' && c <= '9'; });
    return rule == FEDSZ_RULE_PARAMETERS || dimensions >= 2 || !number;
}

void check(const fedsz_settings& settings) {
    const double most =
        settings.bound_kind == FEDSZ_BOUND_REL ? 1 : std::numeric_limits<double>::infinity();
    if (settings.bound_kind < FEDSZ_BOUND_ABS || settings.bound_kind > FEDSZ_BOUND_STD)
        fail(FEDSZ_ERROR_ARGUMENT, "no kind of bound ", std::int64_t(settings.bound_kind));
    if (!(settings.bound > 0 && settings.bound < most))
        fail(FEDSZ_ERROR_ARGUMENT, "a bound must be finite and above 0, and below 1 of a range");
    if (settings.effort > 9)
        fail(FEDSZ_ERROR_ARGUMENT, "effort must lie in 0..9, got ", std::uint64_t(settings.effort));
    if (settings.threads < 1 || settings.threads > 1024)
        fail(FEDSZ_ERROR_ARGUMENT, "threads must lie in 1..1024, got ",
             std::uint64_t(settings.threads));
    if (settings.workspace && settings.threads > 1)
        fail(FEDSZ_ERROR_ARGUMENT, "a workspace is for one thread");
    if (!has_codec(settings.lossless))
        fail(FEDSZ_ERROR_UNAVAILABLE, "no lossless codec ", std::int64_t(settings.lossless),
             " in this library");
    if (settings.rule < FEDSZ_RULE_SHAPE || settings.rule > FEDSZ_RULE_PARAMETERS)
        fail(FEDSZ_ERROR_ARGUMENT, "no rule ", std::int64_t(settings.rule));
    if (!std::isfinite(settings.residual_weight))
        fail(FEDSZ_ERROR_ARGUMENT, "the residual's weight must be finite");
#ifdef FEDSZ_HAS_DECODER
    const Levels levels = levels_of(settings.lossless);
    if (settings.lossless != FEDSZ_RAW &&
        (settings.lossless_level < levels.least || settings.lossless_level > levels.most))
        fail(FEDSZ_ERROR_ARGUMENT, "the lossless level must lie in ", std::int64_t(levels.least),
             "..", std::int64_t(levels.most), ", got ", std::int64_t(settings.lossless_level));
#endif
}

Writer::Writer(const fedsz_settings& settings)
    : settings_(settings),
      reference_(reinterpret_cast<const Reference*>(settings.reference)),
      names_(1),
      ends_{1} {}

const void* Writer::base_of(const Described& tensor) const {
    if (!reference_) return nullptr;
    const void* const base = reference_->find(tensor.name, tensor.dtype, tensor.shape);
    if (!base)
        fail(FEDSZ_ERROR_ARGUMENT, "the reference has no '", tensor.name,
             "' of this dtype and shape");
    return base;
}

bool Writer::may_be_lossy(const Described& tensor) const {
    return tensor.dtype < kLossyCount && tensor.count > settings_.threshold &&
           rule_takes(settings_.rule, tensor.name, tensor.shape.size());
}

// As fedsz.core.lossless.encode_lossless: what is smallest, and raw where nothing is smaller.
Writer::Part Writer::lossless(Octets bytes, std::size_t item,
                              std::span<const Member> members) const {
    Part part{kRaw, FEDSZ_VALUES, false, 0, {}, {}};
    for (const Member& member : members) part.members.push_back(member.index);
    std::size_t most = bytes.size();
    if (auto best = packed(bytes, settings_.lossless, settings_.lossless_level)) {
        part.data = std::move(*best);
        part.codec = std::uint8_t(settings_.lossless);
        most = part.data.size();
    }
    const bool real = std::ranges::none_of(members, &Member::complex);
    if (reference_ && real && settings_.lossless != FEDSZ_RAW && has_codec(kZstd)) {
        Buffer planes(bytes.size());
        std::uint8_t* plane = planes.data();
        for (const Member& member : members) {
            stream::bit_difference({item, member.count, member.floating}, bytes.data() + member.at,
                                   static_cast<const std::uint8_t*>(member.base), plane,
                                   bytes.size() / item);
            plane += member.count;
        }
        constexpr int level =
            1;  // whatever that of plain bytes: higher ones gain nothing on planes
        if (auto steps = packed(Octets(planes.span()), kZstd, level);
            steps && steps->size() < most) {
            part.data = std::move(*steps);
            part.codec = kZstd;
            part.transform = FEDSZ_BITS;
        }
    }
    if (part.codec == kRaw) {
        part.data = Buffer(bytes.size());
        std::ranges::copy(bytes, part.data.data());
    }
    return part;
}

fedsz_written Writer::add(const fedsz_tensor& given, const void* data, const void* residual,
                          void* left) {
    if (finished()) fail(FEDSZ_ERROR_ARGUMENT, "the stream has ended");
    const Described tensor = described(given);
    check_elements(data, tensor, "data");
    if ((residual || left) && !settings_.feedback)
        fail(FEDSZ_ERROR_ARGUMENT, "a residual without feedback in the settings");
    if ((residual || left) && tensor.dtype >= kLossyCount)
        fail(FEDSZ_ERROR_ARGUMENT, "a residual of '", tensor.name, "', which is never lossy");
    if (residual) check_elements(residual, tensor, "residual");
    if (left) check_elements(left, tensor, "left");
    if (settings_.residual_weight == 0) residual = nullptr;
    const auto index = std::uint32_t(ends_.size() - 1);
    if (index_.find(tensor.name, [this](std::size_t i) { return name_of(i); }) != NameIndex::npos)
        fail(FEDSZ_ERROR_ARGUMENT, "two tensors are called '", tensor.name, "'");
    const void* const base = base_of(tensor);

    // Room for what is noted once the tensor is coded.
    tensors_.reserve(tensor.name.size() + 9 * tensor.shape.size() + 16);
    if (names_.capacity() - names_.size() < tensor.name.size())
        names_.reserve(2 * names_.size() + tensor.name.size());
    ends_.reserve(ends_.size() + 1 < ends_.capacity() ? 0 : 2 * ends_.size() + 8);
    index_.reserve(ends_.capacity());
    if (parts_.size() == parts_.capacity()) parts_.reserve(2 * parts_.size() + 8);

    fedsz_written written{};
    const Fed fed{residual, settings_.residual_weight, left};
    Buffer exact;
    if (may_be_lossy(tensor)) {
        const Task task{Dtype(tensor.dtype),
                        tensor.shape,
                        tensor.count,
                        base,
                        {settings_.bound_kind, settings_.bound},
                        {settings_.effort, settings_.threads, nullptr}};
        if (auto coded = settings_.feedback ? encode_fed(task, data, fed)
                                            : encode_within(task, data, nullptr)) {
            written = {1, coded->bound, coded->max_error, coded->payload.size()};
            Part part{kUniform,     std::uint8_t(coded->transform), true,
                      coded->bound, std::move(coded->payload),      {}};
            part.members.push_back(index);
            parts_.push_back(std::move(part));
            record(tensor);
            return written;
        }
    }
    if (settings_.feedback && tensor.dtype < kLossyCount) {
        exact = exact_with(Dtype(tensor.dtype), data, fed, tensor.count);
        if (exact.data()) data = exact.data();
    }
    const Octets bytes(static_cast<const std::uint8_t*>(data), tensor.size());
    Member member{index, 0, tensor.count, tensor.type().floating, tensor.type().complex, base};
    if (bytes.size() >= kSharedBelow) {
        parts_.push_back(lossless(bytes, tensor.type().size, std::span(&member, 1)));
        written.size = parts_.back().data.size();
    } else {
        auto group = std::ranges::find(groups_, tensor.type().size, &Group::item);
        if (group == groups_.end()) {
            groups_.push_back({tensor.type().size, {}, {}});
            group = groups_.end() - 1;
        }
        member.at = group->bytes.size();
        group->members.reserve(group->members.size() + 1 < group->members.capacity()
                                   ? 0
                                   : 2 * group->members.size() + 8);
        group->bytes.insert(group->bytes.end(), bytes.begin(), bytes.end());
        group->members.push_back(member);
    }
    record(tensor);
    return written;
}

void Writer::record(const Described& tensor) {
    tensors_.array(3);
    tensors_.text(tensor.name);
    tensors_.number(tensor.dtype);
    tensors_.array(tensor.shape.size());
    for (const std::uint64_t length : tensor.shape) tensors_.number(length);
    names_.insert(names_.end(), tensor.name.begin(), tensor.name.end());
    ends_.push_back(names_.size());
    index_.add(std::uint32_t(ends_.size() - 2), [this](std::size_t i) { return name_of(i); });
}

std::size_t Writer::finish() {
    if (finished()) fail(FEDSZ_ERROR_ARGUMENT, "the stream has ended");
    const std::size_t before = parts_.size();
    try {
        for (const Group& group : groups_)
            if (!group.members.empty())  // as of a tensor that there was no memory for
                parts_.push_back(lossless(group.bytes, group.item, group.members));
        write_header();
    } catch (...) {
        parts_.erase(parts_.begin() + std::ptrdiff_t(before), parts_.end());
        throw;
    }
    groups_.clear();
    std::size_t size = 0;
    pieces([&](Octets piece) { return size += piece.size(), 0; });
    return size;
}

void Writer::write_header() {
    const bool differs = std::ranges::any_of(
        parts_, [](const Part& part) { return part.transform != FEDSZ_VALUES; });
    Packer header;
    header.map(3);
    header.text("tensors");
    header.array(ends_.size() - 1);
    header.append(tensors_);
    header.text("payloads");
    header.array(parts_.size());
    for (const Part& part : parts_) {
        header.array(6);
        header.number(part.codec);
        header.number(part.transform);
        header.number(part.data.size());
        header.number(crc32(part.data.span()));
        part.lossy ? header.real(part.bound) : header.nil();
        header.array(part.members.size());
        for (const std::uint32_t member : part.members) header.number(member);
    }
    header.text("reference");
    differs ? header.binary(reference_->digest()) : header.nil();

    const Buffer stored = deflated_header(header.bytes());
    Buffer whole(kPrefix + stored.size());
    std::uint8_t* to = std::ranges::copy(kMagic, whole.data()).out;
    const auto put = [&](std::uint64_t value, int bytes) {
        for (int i = 0; i < bytes; ++i) *to++ = std::uint8_t(value >> 8 * i);
    };
    put(differs ? kDifferencesVersion : kValuesVersion, 2);
    put(0, 2);
    put(stored.size(), 4);
    put(crc32(stored.span(), crc32(Octets(whole.data(), 16))), 4);
    std::ranges::copy(stored.span(), to);
    header_ = std::move(whole);
}

}  // namespace fedsz::library

#include "model.hpp"

#include "analysis.hpp"
#include "side.hpp"

namespace fedsz::uniform {
namespace {

// Bits 2 and 3 are the side.
enum Flags : std::uint8_t { kFewStates = 1, kHasClasses = 2, kSideShift = 2, kAllFlags = 15 };

void write_geometry(const Contexts& contexts, Writer& writer) {
    writer.varint(contexts.geometry.rows);
    writer.put(std::uint8_t(contexts.geometry.planes));
    if (!contexts.by_plane()) return;
    writer.put(std::uint8_t(contexts.geometry.width));
    writer.put(std::uint8_t(contexts.centre));
}

void read_geometry(Reader& reader, std::size_t n, Contexts& contexts) {
    Geometry& geometry = contexts.geometry;
    const std::uint64_t rows = reader.varint();
    if (rows == 0 || n % rows != 0) throw CorruptPayload("rows do not divide the elements");
    geometry = {std::size_t(rows), n / std::size_t(rows), reader.get<std::uint8_t>(), 1};
    if (geometry.planes == 0 || geometry.columns % geometry.planes != 0)
        throw CorruptPayload("planes do not divide the columns");
    if (!contexts.by_plane()) return;
    geometry.width = reader.get<std::uint8_t>();
    contexts.centre = reader.get<std::uint8_t>();
    if (geometry.width == 0) throw CorruptPayload("a kernel has no width");
}

void write_classes(const Contexts& contexts, const Kernels& kernels, Writer& writer) {
    writer.put(std::uint8_t(contexts.classes));
    writer.varint(zigzag(contexts.offset));
    write_run(differences(contexts), nullptr, 1, kernels, writer);
}

void read_classes(Reader& reader, const Kernels& kernels, Contexts& contexts) {
    contexts.classes = reader.get<std::uint8_t>();
    const std::int64_t offset = unzigzag(reader.varint());
    const Geometry& geometry = contexts.geometry;
    if (contexts.classes < 2 || contexts.count() > kContexts || offset < -1024 || offset > 1024 ||
        geometry.columns > kMaxColumns)
        throw CorruptPayload("classes out of range");
    contexts.offset = int(offset);
    // Encoders give no tensor classes that are many beside its elements.
    const std::size_t count = geometry.rows + geometry.channels();
    if (count > geometry.size() / 4) throw CorruptPayload("more classes than they could be worth");
    auto both = read_run(reader, count, nullptr, 1, kernels);
    std::uint8_t last = 0;
    for (std::uint8_t& symbol : both) symbol = last = std::uint8_t(last + symbol);
    const auto middle = both.begin() + std::ptrdiff_t(geometry.rows);
    contexts.row.assign(both.begin(), middle);
    contexts.column.assign(middle, both.end());
}

// Calls put(table) for each context that does not share the table of the one before.
template <class Put>
void write_tables(const Contexts& contexts, BinaryEncoder& coder, const Put& put) {
    Bit fresh;
    for (unsigned context = 0; context < contexts.count(); ++context) {
        const bool is_new = context == 0 || contexts.table[context] != contexts.table[context - 1];
        if (context > 0) coder.put(fresh, is_new);
        if (is_new) put(contexts.table[context]);
    }
}

// Adds what get() returns to `tables`, for each such context.
template <class Table, class Get>
void read_tables(Contexts& contexts, BinaryDecoder& coder, Vector<Table>& tables,
                 const Get& get) {
    Bit fresh;
    for (unsigned context = 0; context < contexts.count(); ++context) {
        if (context == 0 || coder.get(fresh)) tables.push_back(get());
        contexts.table.push_back(std::uint8_t(tables.size() - 1));
    }
}

}  // namespace

Vector<Frequencies> Model::frequencies() const {
    Vector<Frequencies> all;
    if (quads)
        for (const QuadTable& table : quads->tables) all.push_back(frequencies_of(table, bits));
    for (const Table& table : tables) all.push_back(frequencies_of(table, bits));
    return all;
}

void write(const Model& model, const Kernels& kernels, Writer& writer) {
    const Contexts& contexts = model.contexts;
    const bool classes = contexts.classes > 1;
    writer.put(std::uint8_t((model.lanes == kFewLanes ? kFewStates : 0) |
                            (classes ? kHasClasses : 0) | unsigned(contexts.side) << kSideShift));
    writer.put(std::uint8_t(model.bits));
    if (contexts.count() > 1 || model.quads) write_geometry(contexts, writer);
    if (classes) write_classes(contexts, kernels, writer);
    if (model.factors) write(*model.factors, kernels, writer);

    BinaryEncoder coder;
    TableWriter tables;
    if (model.quads) {
        QuadTableWriter quads;
        write_tables(contexts, coder,
                     [&](unsigned i) { quads.put(coder, model.quads->tables[i]); });
        tables.put(coder, model.tables[0], model.bits);
    } else {
        write_tables(contexts, coder,
                     [&](unsigned i) { tables.put(coder, model.tables[i], model.bits); });
    }
    const auto& bytes = coder.finish();
    writer.varint(bytes.size());
    writer.put(bytes.data(), bytes.size());
}

Model read_model(Reader& reader, const Kernels& kernels, std::size_t n, bool quads) {
    Model model;
    Contexts& contexts = model.contexts;
    const auto flags = reader.get<std::uint8_t>();
    if (flags & ~kAllFlags || flags >> kSideShift > unsigned(quads ? Side::none : Side::fraction))
        throw CorruptPayload("unknown flags");
    model.lanes = flags & kFewStates ? kFewLanes : kLanes;
    contexts.side = Side(flags >> kSideShift);
    model.bits = reader.get<std::uint8_t>();
    if (model.bits < kMinBits || model.bits > kMaxBits)
        throw CorruptPayload("probabilities of a width that does not exist");
    contexts.geometry = {1, n, 1, 1};
    const bool classes = flags & kHasClasses;
    if (quads || classes || contexts.side != Side::none) read_geometry(reader, n, contexts);
    if (quads && !fits_quads(contexts.geometry))
        throw CorruptPayload("rows of quads are too few, too many or too short");
    if (classes) read_classes(reader, kernels, contexts);
    if (contexts.side == Side::fraction)
        model.factors = read_factors(reader, kernels, contexts.geometry);

    BinaryDecoder coder(reader.take(reader.varint()));
    TableReader tables;
    const auto next_table = [&] { return tables.get(coder, model.bits); };
    if (!quads) {
        read_tables(contexts, coder, model.tables, next_table);
        return model;
    }
    QuadTableReader of_quads;
    Vector<QuadTable> read;
    read_tables(contexts, coder, read, [&] { return of_quads.get(coder, model.bits); });
    model.tables.push_back(next_table());
    const QuadRows rows(contexts);
    model.quads.emplace(QuadModel{rows, rows.grouped(contexts), std::move(read)});
    return model;
}

}  // namespace fedsz::uniform

#include "side.hpp"

namespace fedsz::uniform {
namespace {

unsigned lanes_for(std::size_t symbols) { return symbols < 8192 ? kFewLanes : kLanes; }

}  // namespace

void write_run(std::span<const std::uint8_t> symbols, const std::uint8_t* contexts, unsigned tables,
               const Kernels& kernels, Writer& writer) {
    Vector<Counts> counts(tables, Counts{});
    for (std::size_t i = 0; i < symbols.size(); ++i)
        ++counts[contexts ? contexts[i] : 0][symbols[i]];
    BinaryEncoder coder;
    TableWriter writing;
    Vector<Table> fitted;
    for (const Counts& of_table : counts) {
        fitted.push_back(fit(of_table, kMaxBits));
        writing.put(coder, fitted.back(), kMaxBits);
    }
    const auto& model = coder.finish();
    writer.varint(model.size());
    writer.put(model.data(), model.size());

    RunEncoder run(kernels, symbols.size());
    run.start(lanes_for(symbols.size()));
    run.encode(RangeTables(frequencies_of(fitted, kMaxBits), kMaxBits), contexts, symbols, 0);
    writer.varint(run.size());
    if (const auto room = writer.reserve(run.size()); !room.empty()) run.write(room);
}

Vector<std::uint8_t> read_run(Reader& reader, std::size_t n, const std::uint8_t* contexts,
                                   unsigned tables, const Kernels& kernels) {
    BinaryDecoder coder(reader.take(reader.varint()));
    TableReader reading;
    Vector<Table> fitted;
    for (unsigned i = 0; i < tables; ++i) fitted.push_back(reading.get(coder, kMaxBits));
    RunDecoder run(kernels, lanes_for(n), reader.take(reader.varint()));
    Vector<std::uint8_t> symbols(n);
    run.decode(SlotTables(frequencies_of(fitted, kMaxBits), kMaxBits), contexts, symbols);
    run.finish();
    return symbols;
}

}  // namespace fedsz::uniform

#include "server/model/slice_checks.h"

#include <algorithm>
#include <cmath>
#include <string>

#include <fmt/format.h>

#include "common/text/text.h"
#include "common/types/finite.h"
#include "common/types/model_layout.h"
#include "server/store/rows/row_blocks.h"

namespace psd {

Status checkSlice(const ServedModel& model, const Limits& limits, uint32_t shard, uint64_t offset,
                  uint64_t count) {
  auto bad = [&](const std::string& why) {
    return Status(ErrorCode::badSlice, "slice of " + std::to_string(count) + " elements at " +
                                           std::to_string(offset) + " of shard " + std::to_string(shard) +
                                           ": " + why);
  };
  if (shard >= model.store->shardCount()) {
    return bad("there are " + std::to_string(model.store->shardCount()) + " shards, numbered from 0");
  }
  uint64_t elements = model.store->shard(shard).range().count;
  if (count == 0 || offset > elements || count > elements - offset) {
    return bad("the shard has " + std::to_string(elements) + " elements");
  }
  if (offset % kLayoutGrainElements != 0 ||
      (count % kLayoutGrainElements != 0 && offset + count != elements)) {
    return bad("slices are cut at multiples of " + std::to_string(kLayoutGrainElements) + " elements");
  }
  if (count > limits.sliceBytes / sizeof(float)) {
    return bad("limits.slice_bytes allows " + std::to_string(limits.sliceBytes / sizeof(float)) +
               " elements");
  }
  return {};
}

Status checkSlice(const ServedModel& model, const Limits& limits, uint32_t shard, uint64_t offset,
                  uint64_t count, uint64_t total) {
  PSD_RETURN_IF_ERROR(checkSlice(model, limits, shard, offset, count));
  const uint64_t elements = model.store->shard(shard).range().count;
  if (total == elements) return {};
  return {ErrorCode::badSlice, fmt::format("push to shard {}: a part of {} elements, and the shard has {}",
                                           shard, total, elements)};
}

namespace {

/// The row shard with that block number; ErrorCode::badSlice if there is none.
Result<const RowShard*> rowShardOf(const ServedModel& model, uint32_t shard) {
  const ParameterStore& store = *model.store;
  if (shard >= store.shardCount() && shard < store.blockCount())
    return &store.rowShard(shard - store.shardCount());
  if (store.rowShardCount() == 0) {
    return Error{ErrorCode::badSlice, fmt::format("rows of shard {}: the model has no tables", shard)};
  }
  return Error{ErrorCode::badSlice, fmt::format("rows of shard {}: the row shards are {} to {}", shard,
                                                store.shardCount(), store.blockCount() - 1)};
}

}  // namespace

Status checkRows(const ServedModel& model, const Limits& limits, uint32_t shard, const RowIds& rows) {
  PSD_ASSIGN_OR_RETURN(const RowShard* of, rowShardOf(model, shard));
  const uint64_t floatsMax = limits.sliceBytes / sizeof(float);
  if (rows.ids.size() > floatsMax / kRowIdFloats) {  // before they are scanned
    return {ErrorCode::badSlice, fmt::format("rows of shard {}: {} ids; limits.slice_bytes allows {}", shard,
                                             rows.ids.size(), floatsMax / kRowIdFloats)};
  }
  PSD_RETURN_IF_ERROR(of->check(rows));
  const uint64_t values = of->valueCount(rows.runs);
  const uint64_t floats = values + rows.ids.size() * kRowIdFloats + rows.runs.size() * kRowRunFloats;
  if (floats <= floatsMax) return {};
  return {
      ErrorCode::badSlice,
      fmt::format(
          "rows of shard {}: {} ids in {} runs and their {} values take {} bytes; limits.slice_bytes is {}",
          shard, rows.ids.size(), rows.runs.size(), values, floats * sizeof(float), limits.sliceBytes)};
}

Status checkRows(const ServedModel& model, const Limits& limits, uint32_t shard, const RowIds& rows,
                 uint64_t values, uint64_t first, uint64_t total) {
  PSD_RETURN_IF_ERROR(checkRows(model, limits, shard, rows));
  const auto bad = [shard](const std::string& why) {
    return Status(ErrorCode::badSlice, fmt::format("rows of shard {}: {}", shard, why));
  };
  const uint64_t count = rows.ids.size();
  if (first > total || count > total - first) {
    return bad(fmt::format("{} from row {} on, and the part has {}", count, first, total));
  }
  if (count == 0 && total > 0) return bad(fmt::format("a slice without rows, and the part has {}", total));
  const uint64_t wanted = rowShardOf(model, shard).value()->valueCount(rows.runs);
  if (values == wanted) return {};
  return bad(fmt::format("a gradient of {} values, and the rows have {}", values, wanted));
}

namespace {

/// The number of tensors that have elements in the range.
size_t tensorsIn(const ModelLayout& layout, const ShardRange& range) {
  return layout.tensorAt(range.begin + range.count - 1) - layout.tensorAt(range.begin) + 1;
}

}  // namespace

Error hyperparametersRefused() {
  return {
      ErrorCode::invalidArgument,
      "a push carries hyperparameters, and the daemon's configuration has the optimizer: remove `optimizer` "
      "from it, so that the trainer's applies"};
}

Status checkHyperparameters(const ServedModel& model, uint32_t shard, const Hyperparameters& carried) {
  const ParameterStore& store = *model.store;
  const auto bad = [shard](const std::string& why) {
    return Status(ErrorCode::badSlice, fmt::format("hyperparameters of shard {}: {}", shard, why));
  };
  const bool isDense = shard < store.shardCount();
  const ModelSpec& spec = store.model();
  const uint64_t units = isDense ? store.shard(shard).range().count : spec.tables.size();
  const size_t runsMax = isDense ? tensorsIn(store.layout(), store.shard(shard).range()) : spec.tables.size();
  if (carried.runs.empty() || carried.runs.size() > runsMax || carried.sets.size() > carried.runs.size()) {
    return bad(fmt::format("{} runs of {} sets; there are at most {} runs, and no more sets",
                           carried.runs.size(), carried.sets.size(), runsMax));
  }
  uint64_t begin = 0;
  for (const Hyperparameters::Run& run : carried.runs) {
    const bool cut = run.end == units || !isDense || run.end % kLayoutGrainElements == 0;
    if (run.end <= begin || run.end > units || !cut) {
      return bad(
          fmt::format("a run from {} to {} of {}; runs end at rising multiples of {}, the last at the end",
                      begin, run.end, units, isDense ? kLayoutGrainElements : 1));
    }
    begin = run.end;
  }
  if (begin != units) return bad(fmt::format("they cover {} of {}", begin, units));
  for (const std::vector<double>& set : carried.sets) {
    PSD_RETURN_IF_ERROR(store.block(shard).optimizer().checkHyperparameters(set));
  }
  return {};
}

namespace {

std::string describeElement(const ParameterStore& store, uint64_t element, float value) {
  const ModelLayout& layout = store.layout();
  const size_t tensor = layout.tensorAt(element);
  const TensorPlace& place = layout.places()[tensor];
  const std::string name = printable(store.model().tensors[tensor].name);
  const uint64_t at = element - place.begin;
  if (at < place.count) return nonFiniteElement(name, value, at, place.count);
  return fmt::format("the padding after {} holds {}", name, std::isnan(value) ? "nan" : "infinity");
}

/// The tensors of elements [begin, begin + count) of the model's layout.
std::string describeTensors(const ParameterStore& store, uint64_t begin, uint64_t count) {
  const ModelLayout& layout = store.layout();
  const size_t first = layout.tensorAt(begin), last = layout.tensorAt(begin + count - 1);
  const auto name = [&](size_t tensor) { return printable(store.model().tensors[tensor].name); };
  if (first != last) return fmt::format("the tensors from {} to {}", name(first), name(last));
  const TensorPlace& place = layout.places()[first];
  const uint64_t end = std::min(begin + count, place.begin + place.count) - place.begin;
  return fmt::format("{}, elements {} to {} of {}", name(first), begin - place.begin, end - 1, place.count);
}

/// Names the row and table that hold NaN or infinity; empty: none.
std::string describeRow(const ServedModel& model, const RowShard& shard, const RowIds& rows,
                        std::span<const float> values) {
  std::string found;
  forEachRun(rows, [&](const RowRun& run, std::span<const uint64_t> ids) {
    const size_t dim = shard.table(run.table)->dim();
    const auto ofRun = values.first(dim * ids.size());
    values = values.subspan(ofRun.size());
    const auto bad = std::ranges::find_if(ofRun, [](float value) { return !std::isfinite(value); });
    if (!found.empty() || bad == ofRun.end()) return;
    found = nonFiniteRow(printable(model.store->model().tables[run.table].name), *bad,
                         ids[static_cast<size_t>(bad - ofRun.begin()) / dim]);
  });
  return found;
}

}  // namespace

Error notFinite(const ServedModel& model, uint32_t shard, uint64_t offset, std::span<const float> values) {
  const ParameterStore& store = *model.store;
  const auto bad = std::ranges::find_if(values, [](float value) { return !std::isfinite(value); });
  if (bad == values.end()) return notFinite(model, shard, offset, values.size());  // changed meanwhile
  const uint64_t at = offset + static_cast<uint64_t>(bad - values.begin());
  return {ErrorCode::nonFinite, describeElement(store, store.shard(shard).range().begin + at, *bad)};
}

Error notFinite(const ServedModel& model, uint32_t shard, uint64_t offset, uint64_t count) {
  const ParameterStore& store = *model.store;
  return {ErrorCode::nonFinite,
          fmt::format("NaN or infinity in {}",
                      describeTensors(store, store.shard(shard).range().begin + offset, count))};
}

Status checkFinite(const ServedModel& model, uint32_t shard, uint64_t offset, std::span<const float> values) {
  if (allFinite(values)) return {};
  return notFinite(model, shard, offset, values);
}

Status checkRestorable(const ParameterStore& store) {
  if (!store.model().tables.empty()) {
    return {
        ErrorCode::invalidArgument,
        "the model has embedding tables, whose rows a trainer cannot restore: resume from the daemon's own "
        "checkpoint (durability.resume)"};
  }
  for (size_t i = 0; i < store.shardCount(); i++) {
    const Shard& shard = store.shard(i);
    if (!shard.updated()) continue;
    return {ErrorCode::invalidArgument,
            fmt::format(
                "the daemon's run has begun (shard {} is at version {}), and a state is restored before its "
                "first update: start a daemon without a model, or resume this one from its own checkpoint "
                "(durability.resume)",
                i, shard.version().value)};
  }
  return {};
}

Status checkRestored(const ServedModel& model, uint32_t shard, size_t plane, uint64_t offset,
                     std::span<const float> values) {
  const ParameterStore& store = *model.store;
  if (plane == 0) return checkFinite(model, shard, offset, values);
  const Slot slot = store.optimizerOf(store.shard(shard)).slots()[plane - 1];
  if (!allFinite(values)) {
    const Error error = notFinite(model, shard, offset, values);
    return {error.code, fmt::format("state {}: {}", slot.name, error.message)};
  }
  const auto negative = std::ranges::find_if(values, [](float value) { return value < 0; });
  if (!slot.nonNegative || negative == values.end()) return {};
  const uint64_t at = offset + static_cast<uint64_t>(negative - values.begin());
  return {ErrorCode::badSlice,
          fmt::format("state {}: {} holds {}, and the optimizer takes its square root", slot.name,
                      describeTensors(store, store.shard(shard).range().begin + at, 1), *negative)};
}

Status checkGradient(const ServedModel& model, uint32_t shard, uint64_t offset, const Gradient& gradient) {
  if (!gradient.codec()) return checkFinite(model, shard, offset, gradient.values());
  const Status status = gradient.codec()->check(gradient.bytes(), gradient.size());
  if (status.ok()) return {};
  return inTensors(model, shard, offset, gradient.size(), status.error());
}

Error inTensors(const ServedModel& model, uint32_t shard, uint64_t offset, uint64_t count, const Error& why) {
  const ParameterStore& store = *model.store;
  const uint64_t begin = store.shard(shard).range().begin + offset;
  return {why.code, fmt::format("{}: {}", describeTensors(store, begin, count), why.message)};
}

Status checkRowGradient(const ServedModel& model, uint32_t shard, uint64_t first, const RowIds& rows,
                        const Gradient& gradient) {
  const RowShard& of = *rowShardOf(model, shard).value();
  if (!gradient.codec()) {
    if (allFinite(gradient.values())) return {};
    const std::string where = describeRow(model, of, rows, gradient.values());
    if (!where.empty()) return {ErrorCode::nonFinite, where};
    return {ErrorCode::nonFinite,
            fmt::format("NaN or infinity in rows of shard {} from row {} on", shard, first)};
  }
  const Status status = checkRowBytes(*gradient.codec(), rowBlocks(of, rows.runs), gradient.bytes());
  if (status.ok()) return {};
  return {status.error().code,
          fmt::format("rows of shard {} from row {} on: {}", shard, first, status.message())};
}

Error codecNotAgreed(std::string_view asked, const Codec* agreed) {
  return {ErrorCode::invalidArgument, "codec '" + std::string(asked) + "' was not agreed when joining, but " +
                                          (agreed ? "'" + std::string(agreed->name()) + "'" : "none")};
}

void countRefusal(DaemonMetrics& counters, const Error& error) {
  if (error.code == ErrorCode::nonFinite) counters.refusedNonFinite.add();
  if (error.code == ErrorCode::overloaded) counters.refusedOverload.add();
  if (error.code == ErrorCode::badSlice) counters.refusedSlices.add();
}

}  // namespace psd

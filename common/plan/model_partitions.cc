#include "common/plan/model_partitions.h"

#include <algorithm>
#include <charconv>
#include <memory>
#include <numeric>
#include <optional>
#include <span>

#include <fmt/format.h>

#include "common/text/text.h"
#include "common/types/split_mix.h"

namespace psd {
namespace {

/// Fraction of an even share by which a cut may move to fall between two tensors.
constexpr uint64_t kMaxShiftDivisor = 20;  // 1 / 20 of the share

/// Rows [begin, end) of a tensor, in its first dimension; the whole tensor if it is not cut.
struct TensorPart {
  std::string_view tensor;
  uint64_t begin = 0, end = 0;
};

uint64_t rowsOf(const TensorSpec& tensor) { return tensor.shape.empty() ? 1 : tensor.shape.front(); }

/// The number of rows at whose multiples a tensor can be cut, so that the part after the cut begins at the
/// layout's grain.
uint64_t rowGrain(const TensorSpec& tensor) {
  const uint64_t row = tensor.elementCount() / rowsOf(tensor);
  return kLayoutGrainElements / std::gcd(kLayoutGrainElements, row);
}

uint64_t distance(uint64_t one, uint64_t other) { return one > other ? one - other : other - one; }

/// The places in a model's layout where a cut is possible: at the beginning of a tensor, and between rows of
/// one. A value type; the model outlives it.
class Cuts {
 public:
  /// Cuts go between two tensors if the distance is at most a fraction of an even share for `daemons`.
  Cuts(const ModelSpec& model, uint32_t daemons)
      : model_(model), layout_(model), maxShift_(total() / daemons / kMaxShiftDivisor) {}

  uint64_t total() const { return layout_.totalElements(); }

  /// The cut nearest to `ideal`, which is below the end; prefers a nearby one between two tensors.
  uint64_t near(uint64_t ideal) const {
    const Tensor tensor = at(ideal);
    const uint64_t boundary =
        distance(tensor.begin, ideal) <= distance(tensor.end, ideal) ? tensor.begin : tensor.end;
    return distance(boundary, ideal) <= maxShift_
               ? boundary
               : tensor.cut((ideal - tensor.begin + tensor.step / 2) / tensor.step);
  }
  /// The first cut after `place`, which is below the end; the end counts as one.
  uint64_t after(uint64_t place) const {
    const Tensor tensor = at(place);
    return tensor.cut((place - tensor.begin) / tensor.step + 1);
  }
  /// The last cut before `place`, which is above 0; 0 counts as one.
  uint64_t before(uint64_t place) const {
    const Tensor tensor = at(place - 1);
    const uint64_t last = std::min(place, tensor.begin + tensor.count) - 1;
    return tensor.begin + (last - tensor.begin) / tensor.step * tensor.step;
  }

 private:
  struct Tensor {
    uint64_t begin, count, end;  // `end` includes the padding
    uint64_t step;               // elements between two cuts

    uint64_t cut(uint64_t steps) const { return steps * step < count ? begin + steps * step : end; }
  };

  Tensor at(uint64_t element) const {
    const size_t index = layout_.tensorAt(element);
    const TensorSpec& spec = model_.tensors[index];
    const auto& places = layout_.places();
    return {places[index].begin, places[index].count,
            index + 1 < places.size() ? places[index + 1].begin : total(),
            rowGrain(spec) * (spec.elementCount() / rowsOf(spec))};
  }

  const ModelSpec& model_;
  const ModelLayout layout_;
  const uint64_t maxShift_;
};

/// Where each partition ends. Without tables, each partition holds part of a tensor if possible.
std::vector<uint64_t> endsOf(const ModelSpec& whole, uint32_t daemons) {
  const Cuts cuts(whole, daemons);
  const uint64_t total = cuts.total();
  std::vector<uint64_t> ends(daemons, total);
  if (whole.tables.empty()) {  // the last cuts that leave something for all later partitions
    for (uint32_t i = daemons - 1; i-- > 0;) ends[i] = ends[i + 1] > 0 ? cuts.before(ends[i + 1]) : 0;
  }
  uint64_t begin = 0;
  for (uint32_t i = 0; i + 1 < daemons; i++) {
    const uint64_t ideal = total / daemons * (i + 1) + total % daemons * (i + 1) / daemons;
    const uint64_t least = whole.tables.empty() && begin < total ? cuts.after(begin) : begin;
    ends[i] = std::max(least, std::min(ends[i], ideal < total ? cuts.near(ideal) : total));
    begin = ends[i];
  }
  return ends;
}

/// The tensors in [begin, end) of the layout, or those of their rows that lie in it.
std::vector<TensorSpec> tensorsIn(const ModelSpec& model, const ModelLayout& layout, uint64_t begin,
                                  uint64_t end) {
  std::vector<TensorSpec> tensors;
  for (size_t i = 0; i < model.tensors.size(); i++) {
    const TensorPlace place = layout.places()[i];
    const uint64_t first = std::max(begin, place.begin), last = std::min(end, place.begin + place.count);
    if (first >= last) continue;
    TensorSpec tensor = model.tensors[i];
    if (last - first < place.count) {
      const uint64_t row = place.count / rowsOf(tensor);
      const uint64_t firstRow = (first - place.begin) / row, endRow = (last - place.begin) / row;
      tensor.name += fmt::format("[{}:{}]", firstRow, endRow);
      tensor.shape.front() = endRow - firstRow;
    }
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

/// Parses the name of a partition's tensor; empty if the tensor is not cut.
std::optional<TensorPart> readPart(std::string_view name) {
  const size_t open = name.rfind('['), colon = name.rfind(':');
  if (!name.ends_with(']') || open == name.npos || colon == name.npos || colon < open) return {};
  const auto number = [](std::string_view digits) -> std::optional<uint64_t> {
    uint64_t value = 0;
    const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (read.ec != std::errc() || read.ptr != digits.data() + digits.size()) return {};
    return value;
  };
  const auto begin = number(name.substr(open + 1, colon - open - 1));
  const auto end = number(name.substr(colon + 1, name.size() - colon - 2));
  if (!begin || !end || *begin >= *end) return {};
  return TensorPart{name.substr(0, open), *begin, *end};
}

Error mismatch(std::string message) { return {ErrorCode::modelMismatch, std::move(message)}; }

/// Adds a partition's tensor to the whole model, or extends the last tensor if it was cut.
Status joinTensor(const TensorSpec& tensor, std::vector<TensorSpec>& whole) {
  const std::optional<TensorPart> part = readPart(tensor.name);
  if (!part) {
    whole.push_back(tensor);
    return {};
  }
  if (tensor.shape.empty() || part->end - part->begin != tensor.shape.front()) {
    return mismatch(fmt::format("'{}' does not have the rows that its name states", printable(tensor.name)));
  }
  if (part->begin == 0) {
    whole.push_back(tensor);
    whole.back().name = part->tensor;
    return {};
  }
  const bool continues =
      !whole.empty() && whole.back().name == part->tensor && !whole.back().shape.empty() &&
      whole.back().shape.front() == part->begin &&
      std::ranges::equal(std::span(whole.back().shape).subspan(1), std::span(tensor.shape).subspan(1));
  if (!continues) {
    return mismatch(
        fmt::format("'{}' does not continue where the previous partition ends", printable(tensor.name)));
  }
  whole.back().shape.front() = part->end;
  return {};
}

}  // namespace

Result<std::vector<ModelPartition>> partitionModel(const ModelSpec& whole, uint32_t daemons) {
  for (const TensorSpec& tensor : whole.tensors) {
    if (daemons == 1 || !readPart(tensor.name)) continue;
    return Error{
        ErrorCode::invalidArgument,
        fmt::format("tensor '{}' has a name reserved for parts of tensors that several daemons serve; "
                    "rename it",
                    printable(tensor.name))};
  }
  const ModelLayout layout(whole);
  const std::vector<uint64_t> ends = endsOf(whole, daemons);
  std::vector<ModelPartition> partitions;
  const auto all = std::make_shared<const std::vector<TensorSpec>>(whole.tensors);
  uint64_t begin = 0;
  for (uint32_t i = 0; i < daemons; i++) {
    ModelPartition& partition = partitions.emplace_back();
    partition.spec = {whole.name, tensorsIn(whole, layout, begin, ends[i]), whole.tables, {i, daemons}};
    partition.begin = begin;
    partition.count = ends[i] - begin;
    if (daemons > 1) partition.spec.whole = all;
    if (partition.spec.empty()) {
      return Error{
          ErrorCode::invalidArgument,
          fmt::format("model '{}', {} parameters in {} tensors, cannot be cut for {} daemons: "
                      "partition {} would be empty",
                      printable(whole.name), whole.parameterCount(), whole.tensors.size(), daemons, i)};
    }
    begin = ends[i];
  }
  return partitions;
}

uint32_t partitionOf(uint64_t rowHash, uint32_t daemons) {
  if (daemons == 1) return 0;
  return static_cast<uint32_t>((splitMix(rowHash) >> 32) * daemons >> 32);
}

std::string_view wholeName(std::string_view name) {
  const std::optional<TensorPart> part = readPart(name);
  return part ? part->tensor : name;
}

Result<ModelSpec> joinPartitions(const std::vector<ModelSpec>& partitions) {
  ModelSpec whole;
  for (size_t i = 0; i < partitions.size(); i++) {
    const ModelSpec& one = partitions[i];
    const Partition wanted{static_cast<uint32_t>(i), static_cast<uint32_t>(partitions.size())};
    if (one.partition != wanted) {
      return mismatch(fmt::format("expected {} of '{}', got {}", wanted.toString(), printable(one.name),
                                  one.partition.toString()));
    }
    if (i == 0) whole = {one.name, {}, one.tables, {}};
    if (one.tables != whole.tables) {
      return mismatch(fmt::format("partition {} of '{}' has different tables than the previous partitions", i,
                                  printable(one.name)));
    }
    if (wanted.isWhole()) return one;
    for (const TensorSpec& tensor : one.tensors) PSD_RETURN_IF_ERROR(joinTensor(tensor, whole.tensors));
  }
  return whole;
}

}  // namespace psd

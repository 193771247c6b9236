#include "common/plan/model_partitions.h"

#include <algorithm>
#include <charconv>
#include <numeric>
#include <optional>

#include <fmt/format.h>

#include "common/text/text.h"
#include "common/types/split_mix.h"

namespace psd {
namespace {

/// Up to what part of an even share a cut is moved so that it goes between two tensors.
constexpr uint64_t kNearEnough = 20;  // one part in so many

/// Rows [begin, end) of a tensor, in its first dimension; all of it where it is not cut.
struct TensorPart {
  std::string_view tensor;
  uint64_t begin = 0, end = 0;
};

uint64_t rowsOf(const TensorSpec& tensor) { return tensor.shape.empty() ? 1 : tensor.shape.front(); }

/// After how many rows a tensor can be cut, so that what is behind the cut begins at the layout's grain.
uint64_t rowGrain(const TensorSpec& tensor) {
  const uint64_t row = tensor.elementCount() / rowsOf(tensor);
  return kLayoutGrainElements / std::gcd(kLayoutGrainElements, row);
}

uint64_t distance(uint64_t one, uint64_t other) { return one > other ? one - other : other - one; }

/// The place in the layout nearest to `ideal` where a cut can go.
uint64_t cutNear(const ModelSpec& model, const ModelLayout& layout, uint64_t ideal, uint64_t share) {
  if (ideal >= layout.totalElements()) return layout.totalElements();
  const size_t index = layout.tensorAt(ideal);
  const TensorPlace place = layout.places()[index];
  const uint64_t end =
      index + 1 < layout.places().size() ? layout.places()[index + 1].begin : layout.totalElements();
  const uint64_t boundary = distance(place.begin, ideal) <= distance(end, ideal) ? place.begin : end;
  if (distance(boundary, ideal) <= share / kNearEnough) return boundary;
  const TensorSpec& tensor = model.tensors[index];
  const uint64_t step = rowGrain(tensor) * (tensor.elementCount() / rowsOf(tensor));
  const uint64_t cut = place.begin + (ideal - place.begin + step / 2) / step * step;
  return cut < place.begin + place.count ? cut : end;
}

/// The tensors that lie in [begin, end) of the layout, or the rows of theirs that do.
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

/// What a name of a partition's tensor says; nothing of a tensor that is not cut.
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

/// Adds a partition's tensor to those of the whole model: the last of these goes on where it is cut.
Status joinTensor(const TensorSpec& tensor, std::vector<TensorSpec>& whole) {
  const std::optional<TensorPart> part = readPart(tensor.name);
  if (!part) {
    whole.push_back(tensor);
    return {};
  }
  if (part->begin == 0) {
    whole.push_back(tensor);
    whole.back().name = part->tensor;
    return {};
  }
  const bool goesOn = !whole.empty() && whole.back().name == part->tensor && !whole.back().shape.empty() &&
                      whole.back().shape.front() == part->begin && !tensor.shape.empty();
  if (!goesOn) {
    return mismatch(
        fmt::format("'{}' does not go on where the partition before it ends", printable(tensor.name)));
  }
  whole.back().shape.front() = part->end;
  return {};
}

}  // namespace

Result<std::vector<ModelPartition>> partitionModel(const ModelSpec& whole, uint32_t daemons) {
  const ModelLayout layout(whole);
  const uint64_t total = layout.totalElements(), share = total / daemons;
  std::vector<ModelPartition> partitions;
  uint64_t begin = 0;
  for (uint32_t i = 0; i < daemons; i++) {
    const uint64_t ideal = total / daemons * (i + 1) + total % daemons * (i + 1) / daemons;
    const uint64_t end = i + 1 == daemons ? total : std::max(begin, cutNear(whole, layout, ideal, share));
    ModelPartition& partition = partitions.emplace_back();
    partition.spec = {whole.name, tensorsIn(whole, layout, begin, end), whole.tables, {i, daemons}};
    partition.begin = begin;
    partition.count = end - begin;
    if (partition.spec.empty()) {
      return Error{
          ErrorCode::invalidArgument,
          fmt::format("model '{}', {} parameters in {} tensors, cannot be cut for {} daemons: "
                      "partition {} would hold nothing",
                      printable(whole.name), whole.parameterCount(), whole.tensors.size(), daemons, i)};
    }
    if (daemons == 1) partition.spec = whole;
    begin = end;
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
      return mismatch(fmt::format("what should be {} of '{}' is {}", wanted.toString(), printable(one.name),
                                  one.partition.toString()));
    }
    if (i == 0) whole = {one.name, {}, one.tables, {}};
    if (one.tables != whole.tables) {
      return mismatch(
          fmt::format("partition {} of '{}' has other tables than those before it", i, printable(one.name)));
    }
    if (wanted.isWhole()) return one;
    for (const TensorSpec& tensor : one.tensors) PSD_RETURN_IF_ERROR(joinTensor(tensor, whole.tensors));
  }
  return whole;
}

}  // namespace psd

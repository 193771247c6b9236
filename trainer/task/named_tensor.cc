#include "trainer/task/named_tensor.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "common/text/text.h"

namespace psd {
namespace {

template <class T>
uint64_t boundOfValues(const NamedTensor& tensor) {
  uint64_t bound = 1;
  for (const T value : tensor.values<T>()) {
    if (value < 0) return 0;
    bound = std::max(bound, static_cast<uint64_t>(value) + 1);
  }
  return bound;
}

/// Exclusive upper bound of the values; 0: some are negative, or they are not whole numbers.
uint64_t boundOf(const NamedTensor& tensor) {
  switch (tensor.type) {
    case ElementType::i32: return boundOfValues<int32_t>(tensor);
    case ElementType::i64: return boundOfValues<int64_t>(tensor);
    case ElementType::u8: return boundOfValues<uint8_t>(tensor);
    default: return 0;
  }
}

template <class T>
bool finiteValues(const NamedTensor& tensor) {
  return std::ranges::all_of(tensor.values<T>(), [](T value) { return std::isfinite(value); });
}

const NamedTensor* findTensor(std::span<const NamedTensor> tensors, const std::string& name) {
  const auto found = std::ranges::find(tensors, name, &NamedTensor::name);
  return found == tensors.end() ? nullptr : &*found;
}

Status checkColumn(const NamedTensor& input, const ColumnSpec& column, uint64_t samples) {
  if (!input.shape.empty() && input.shape.front() == samples) {
    // The values are scanned only if the column has a bound.
    ColumnSpec given{input.name, input.type, {input.shape.begin() + 1, input.shape.end()}, 0};
    if (column.bound != 0) given.bound = boundOf(input);
    if (given.shape.size() == column.shape.size() && column.takes(given)) return {};
  }
  return {ErrorCode::invalidArgument,
          fmt::format("input {}: expected {} of each of {} sample(s){}", input.toString(), column.typeText(),
                      samples, column.bound == 0 ? "" : ", none negative")};
}

}  // namespace

std::string NamedTensor::toString() const {
  return fmt::format("{} {}[{}]", printable(name, 60), elementTypeName(type),
                     joined(shape, ",", [](uint64_t extent) { return std::to_string(extent); }));
}

Result<uint64_t> tensorBytes(ElementType type, std::span<const uint64_t> shape) {
  // Extents after a 0 count too: their product must not overflow.
  uint64_t most = std::numeric_limits<int64_t>::max() / elementBytes(type), bytes = elementBytes(type);
  for (const uint64_t extent : shape) {
    if (extent > most) return Error{ErrorCode::invalidArgument, "a tensor larger than any memory"};
    if (extent != 0) most /= extent;
    bytes *= extent;
  }
  return bytes;
}

uint64_t totalBytes(std::span<const NamedTensor> tensors) {
  uint64_t bytes = 0;
  for (const NamedTensor& tensor : tensors) bytes += tensor.bytes.size();
  return bytes;
}

Status checkInputs(std::span<const NamedTensor> inputs, std::span<const ColumnSpec> columns) {
  uint64_t samples = 0;
  for (const ColumnSpec& column : columns) {
    const NamedTensor* input = findTensor(inputs, column.name);
    if (input == nullptr) {
      return {ErrorCode::invalidArgument,
              fmt::format("input '{}' is missing; expected {}", column.name, describeColumns(columns))};
    }
    if (samples == 0) samples = input->shape.empty() ? 0 : input->shape.front();
    if (samples == 0) {
      return {ErrorCode::invalidArgument, fmt::format("input {}: expected at least one sample of {}",
                                                      input->toString(), column.typeText())};
    }
    PSD_RETURN_IF_ERROR(checkColumn(*input, column, samples));
  }
  if (inputs.size() == columns.size()) return {};
  return {ErrorCode::invalidArgument,
          fmt::format("{} inputs; expected each once of {}", inputs.size(), describeColumns(columns))};
}

std::vector<NamedTensor> tensorsOf(const Batch& batch, std::span<const ColumnSpec> columns) {
  std::vector<NamedTensor> tensors;
  for (const BatchTensor& each : batch.tensors()) {
    if (std::ranges::find(columns, each.column.name, &ColumnSpec::name) == columns.end()) continue;
    NamedTensor tensor{each.column.name, each.column.type, {batch.size()}, each.bytes};
    tensor.shape.insert(tensor.shape.end(), each.column.shape.begin(), each.column.shape.end());
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

Batch batchOf(std::span<const NamedTensor> inputs) {
  std::vector<ColumnSpec> columns;
  for (const NamedTensor& input : inputs) {
    columns.push_back({input.name, input.type, {input.shape.begin() + 1, input.shape.end()}, 0});
  }
  Batch batch;
  batch.reshape(columns, inputs.empty() ? 0 : inputs.front().shape.front());
  for (size_t i = 0; i < inputs.size(); i++) std::ranges::copy(inputs[i].bytes, batch.bytesOf(i).begin());
  return batch;
}

bool allFinite(const NamedTensor& tensor) {
  if (tensor.type == ElementType::f32) return finiteValues<float>(tensor);
  return tensor.type != ElementType::f64 || finiteValues<double>(tensor);
}

}  // namespace psd

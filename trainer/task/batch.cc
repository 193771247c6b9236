#include "trainer/task/batch.h"

#include <algorithm>

#include <fmt/format.h>

#include "common/text/text.h"

namespace psd {
namespace {

struct Element {
  std::string_view name;
  size_t bytes;
};

constexpr Element kElements[] = {{"f32", 4}, {"f64", 8}, {"i32", 4}, {"i64", 8}, {"u8", 1}};

}  // namespace

std::string_view elementTypeName(ElementType type) { return kElements[static_cast<size_t>(type)].name; }
size_t elementBytes(ElementType type) { return kElements[static_cast<size_t>(type)].bytes; }

std::string ColumnSpec::toString() const { return name + " " + typeText(); }

std::string ColumnSpec::typeText() const {
  std::string text(elementTypeName(type));
  if (!shape.empty()) {
    const auto extent = [](uint64_t each) { return each == kAny ? "any" : std::to_string(each); };
    text += fmt::format("[{}]", joined(shape, ",", extent));
  }
  return bound == 0 ? text : fmt::format("{} below {}", text, bound);
}

bool ColumnSpec::takes(const ColumnSpec& column) const {
  const auto fits = [](uint64_t mine, uint64_t given) { return mine == kAny || mine == given; };
  return name == column.name && type == column.type &&
         std::equal(shape.begin(), shape.end(), column.shape.begin(), column.shape.end(), fits) &&
         (bound == 0 || (column.bound != 0 && column.bound <= bound));
}

std::string describeColumns(std::span<const ColumnSpec> columns) {
  return joined(columns, ", ", [](const ColumnSpec& column) { return column.toString(); });
}

void Batch::reshape(const std::vector<ColumnSpec>& columns, size_t size) {
  size_ = size;
  sourceBytes_ = 0;
  rows_.lookups.clear();
  rows_.blocks.clear();
  tensors_.resize(columns.size());
  for (size_t i = 0; i < columns.size(); ++i) {
    tensors_[i].column = columns[i];
    size_t bytes = size * elementBytes(columns[i].type);
    for (const uint64_t extent : columns[i].shape) bytes *= extent;
    tensors_[i].bytes.resize(bytes);
  }
}

const BatchTensor* Batch::find(std::string_view column, ElementType type) const {
  for (const BatchTensor& tensor : tensors_) {
    if (tensor.column.name == column) return tensor.column.type == type ? &tensor : nullptr;
  }
  return nullptr;
}

}  // namespace psd

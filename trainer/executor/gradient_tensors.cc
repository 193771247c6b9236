#include "trainer/executor/gradient_tensors.h"

#include <algorithm>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "common/text/quantity.h"
#include "common/text/text.h"
#include "common/types/model_layout.h"

namespace psd {
namespace {

constexpr const char* kIdsSuffix = ".ids";

/// Indices into the tensors of a ModelSpec, followed by its tables.
Result<std::vector<size_t>> choose(const ModelSpec& spec, const std::vector<std::string>& names) {
  std::vector<size_t> chosen;
  if (names.empty()) {
    for (size_t i = 0; i < spec.tensors.size() + spec.tables.size(); i++) chosen.push_back(i);
    return chosen;
  }
  for (const std::string& name : names) {
    const auto tensor = std::ranges::find(spec.tensors, name, &TensorSpec::name);
    const auto table = std::ranges::find(spec.tables, name, &TableSpec::name);
    if (tensor == spec.tensors.end() && table == spec.tables.end()) {
      return Error{ErrorCode::invalidArgument,
                   fmt::format("there is no parameter '{}'{}", printable(name, 80),
                               spec.tables.empty() ? "" : ", and no table")};
    }
    chosen.push_back(static_cast<size_t>(tensor - spec.tensors.begin()) +
                     (tensor == spec.tensors.end() ? static_cast<size_t>(table - spec.tables.begin()) : 0));
  }
  return chosen;
}

template <class T>
NamedTensor copyOf(std::string name, ElementType type, std::vector<uint64_t> shape,
                   std::span<const T> values) {
  const auto bytes = std::as_bytes(values);
  return {std::move(name), type, std::move(shape), std::vector<std::byte>(bytes.begin(), bytes.end())};
}

}  // namespace

Result<std::vector<NamedTensor>> gradientTensors(const ModelSpec& spec, const ComputedGradient& gradient,
                                                 const std::vector<std::string>& names, uint64_t bytesMax) {
  PSD_ASSIGN_OR_RETURN(const std::vector<size_t> chosen, choose(spec, names));
  const ModelLayout layout(spec);
  const size_t tensors = spec.tensors.size();
  const auto tableOf = [tensors](size_t index) { return static_cast<uint32_t>(index - tensors); };
  uint64_t bytes = 0;
  for (const size_t i : chosen) {
    bytes += i < tensors ? layout.places()[i].count * sizeof(float)
                         : gradient.rows->ids(tableOf(i)).size_bytes() +
                               gradient.rows->gradients(tableOf(i)).size_bytes();
  }
  if (bytes > bytesMax) {
    return Error{ErrorCode::invalidArgument,
                 fmt::format("{} of gradients; message_bytes allows {}: name fewer parameters",
                             bytesText(bytes), bytesText(bytesMax))};
  }
  std::vector<NamedTensor> copies;
  for (const size_t i : chosen) {
    if (i < tensors) {
      const TensorPlace& place = layout.places()[i];
      copies.push_back(copyOf(spec.tensors[i].name, ElementType::f32, spec.tensors[i].shape,
                              std::span(gradient.dense + place.begin, place.count)));
    } else {
      const TableSpec& table = spec.tables[tableOf(i)];
      const std::span<const uint64_t> ids = gradient.rows->ids(tableOf(i));
      copies.push_back(copyOf(table.name, ElementType::f32, {ids.size(), table.dim},
                              gradient.rows->gradients(tableOf(i))));
      copies.push_back(copyOf(table.name + kIdsSuffix, ElementType::i64, {ids.size()}, ids));
    }
  }
  return copies;
}

}  // namespace psd

#pragma once

#include <cstddef>
#include <sstream>
#include <string>
#include <vector>

#include "common/types/model_spec.h"

namespace psd::testing {

/// The model of the counting trainer and the counting reader.
inline const ModelSpec kCountingModel{"counting", {{"a", DType::f32, {3000}}, {"b", DType::f32, {500}}}};

/// The last parameter of each run of this length counts the pushes of all trainers. Shards and tensors are
/// aligned to it.
inline constexpr size_t kCountingPeriod = 16;

inline std::vector<std::string> splitAt(char separator, const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, separator);) parts.push_back(part);
  return parts;
}

}  // namespace psd::testing

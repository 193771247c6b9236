#pragma once

#include <span>
#include <string>

#include "common/status/status.h"

namespace psd {

/// A number that a trainer tells of its training, as its loss. A value type.
struct NamedValue {
  std::string name;
  double value = 0;  ///< may be infinite, or no number
};

inline constexpr size_t kReportedNamesMax = 16;      ///< of one trainer
inline constexpr size_t kReportedNameBytesMax = 64;  ///< of letters, digits, and . _ - /

/// Whether a trainer may report these; an Error says which may not be.
Status checkReported(std::span<const NamedValue> values);

}  // namespace psd

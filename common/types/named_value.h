#pragma once

#include <span>
#include <string>

#include "common/status/status.h"

namespace psd {

/// A number that a trainer reports about its training, such as its loss. A value type.
struct NamedValue {
  std::string name;
  double value = 0;  ///< may be infinite or NaN
};

inline constexpr size_t kReportedValuesMax = 16;     ///< per trainer
inline constexpr size_t kReportedNameBytesMax = 64;  ///< of letters, digits, and . _ - /

/// Whether a trainer may report these values; the Error names the one that it may not.
Status validateReport(std::span<const NamedValue> values);

}  // namespace psd

#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/status/status.h"
#include "common/types/version_info.h"
#include "server/status/publish_status.h"

namespace psd {

/// Logs and counts the attempts to publish a version. Not thread-safe.
class PublishOutcomes {
 public:
  /// Records an attempt that took `seconds`. `meanwhile` completes the line about a failure.
  void note(const Result<VersionInfo>& made, double seconds, std::string_view meanwhile);
  void fillStatus(PublishStatus& status) const;

 private:
  uint64_t published_ = 0, failures_ = 0;
  std::string lastError_;
  double lastSeconds_ = 0;
};

}  // namespace psd

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "trainer/client/api/version_publisher.h"
#include "trainer/client/transport/daemon_connection.h"

// The calls of the interface Publishing. Each function is called on the connection's event loop, where the
// promises resolve. Errors of the daemon name it.

namespace psd {

/// What a rank publishes of a step. Its parts and their bytes outlive the calls.
struct StepToPublish {
  VersionPublisher::Place place;
  uint64_t incarnation = 0;
  uint64_t step = 0;
  std::span<const TensorPart> parts;
  std::vector<uint32_t> checksums;  ///< CRC-32C of each part
  uint64_t sliceBytes = 0;          ///< most that is sent at once
};

/// Declares, begins, sends and finishes a step, which outlives the promise; resolves with its version.
kj::Promise<Result<VersionInfo>> publishStep(DaemonConnection& connection, const StepToPublish& step);

}  // namespace psd

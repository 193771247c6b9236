#pragma once

#include <atomic>
#include <memory>

#include "common/budget/byte_budget.h"
#include "server/config/daemon_config.h"

namespace psd {

/// What peers may make the daemon hold, all of them together, each by a key of `limits`; gathered gradients
/// have a pool of their own (ModelHost). Shared by all that hold some; thread-safe.
struct MemoryBudgets {
  /// `ringFilesMax`: DescriptorBudget::connectionsMax().
  MemoryBudgets(const Limits& limits, uint64_t ringFilesMax)
      : inFlight(ByteBudget::make(limits.inFlightBytes)),
        rings(ByteBudget::make(limits.allRingsBytes)),
        ringFiles(ByteBudget::make(ringFilesMax)),
        snapshots(ByteBudget::make(limits.snapshotBytes)),
        logPending(ByteBudget::make(limits.logPendingBytes)) {}

  /// Goes over to the limits that can change while the daemon runs.
  void follow(const Limits& limits) const {
    snapshots->setBytesMax(limits.snapshotBytes);
    logPending->setBytesMax(limits.logPendingBytes);
  }

  const std::shared_ptr<ByteBudget> inFlight;    ///< in_flight_bytes
  const std::shared_ptr<ByteBudget> rings;       ///< all_rings_bytes
  const std::shared_ptr<ByteBudget> ringFiles;   ///< of rings in host memory, in file descriptors
  const std::shared_ptr<ByteBudget> snapshots;   ///< snapshot_bytes
  const std::shared_ptr<ByteBudget> logPending;  ///< log_pending_bytes
  /// Answers that are queued, as each connection last counted its own: all_outgoing_bytes.
  std::atomic<uint64_t> outgoing{0};
};

}  // namespace psd

#pragma once

#include <atomic>
#include <memory>

#include "common/budget/byte_budget.h"
#include "server/config/daemon_config.h"

namespace psd {

/// Bounds on the memory that all peers together may occupy, one per key of `limits`; gathered gradients have
/// a separate pool (ModelHost). Shared by all components that hold such memory; thread-safe.
struct MemoryBudgets {
  /// `ringFilesMax`: DescriptorBudget::connectionsMax().
  MemoryBudgets(const Limits& limits, uint64_t ringFilesMax)
      : inFlight(ByteBudget::make(limits.inFlightBytes)),
        rings(ByteBudget::make(limits.allRingsBytes)),
        ringFiles(ByteBudget::make(ringFilesMax)),
        snapshots(ByteBudget::make(limits.snapshotBytes)),
        logPending(ByteBudget::make(limits.logPendingBytes)) {}

  /// Applies the limits that can change while the daemon runs.
  void follow(const Limits& limits) const {
    snapshots->setBytesMax(limits.snapshotBytes);
    logPending->setBytesMax(limits.logPendingBytes);
  }

  const std::shared_ptr<ByteBudget> inFlight;    ///< in_flight_bytes
  const std::shared_ptr<ByteBudget> rings;       ///< all_rings_bytes
  const std::shared_ptr<ByteBudget> ringFiles;   ///< of rings in host memory, as file descriptors
  const std::shared_ptr<ByteBudget> snapshots;   ///< snapshot_bytes
  const std::shared_ptr<ByteBudget> logPending;  ///< log_pending_bytes
  /// Queued responses, as last counted by each connection: all_outgoing_bytes.
  std::atomic<uint64_t> outgoing{0};
};

}  // namespace psd

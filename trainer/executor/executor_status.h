#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "trainer/executor/task_threads.h"

namespace psd {

/// One remote trainer. A value type.
struct RemoteTrainerStatus {
  bool joined = true;  ///< the daemon has admitted it; false: the join is pending, and the rank may change
  uint32_t rank = 0;
  std::string peer;  ///< human-readable
  uint64_t contexts = 0, forwards = 0, steps = 0;
  uint64_t staleness = 0;  ///< of the newest step
  uint64_t rows = 0;       ///< rows of embedding tables that its contexts hold
};

/// A snapshot of an executor's state. A value type.
struct ExecutorStatus {
  std::string module, weights;
  std::vector<std::string> devices;  ///< of the module's stages
  uint64_t parameters = 0;
  uint32_t workers = 0;
  TaskThreads::Figures passes;
  uint64_t calls = 0, callsMax = 0;  ///< queued or in progress
  uint64_t overloaded = 0;           ///< calls rejected because callsMax was reached
  uint64_t memoryBytes = 0, memoryBytesMax = 0;
  uint64_t ending = 0;  ///< daemon sessions, not ended yet, of trainers that have departed or lost the daemon
  uint64_t trainersMax = 0;
  std::vector<RemoteTrainerStatus> trainers;

  /// Why another trainer would be rejected; empty: it would be admitted.
  std::string full;
};

/// The format is documented in docs/guides/executor.md.
nlohmann::ordered_json statusJson(const ExecutorStatus& status);

}  // namespace psd

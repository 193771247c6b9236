#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "trainer/executor/task_threads.h"

namespace psd {

/// One remote trainer. A value type.
struct RemoteTrainerStatus {
  bool joined = true;  ///< the daemon has let it in; else it is waited for, and the rank may be another one
  uint32_t rank = 0;
  std::string peer;  ///< for people
  uint64_t contexts = 0, forwards = 0, steps = 0;
  uint64_t staleness = 0;  ///< of the newest step
  uint64_t rows = 0;       ///< of embedding tables, that its contexts hold
};

/// What an executor is at. A value type.
struct ExecutorStatus {
  std::string module, weights;
  std::vector<std::string> devices;  ///< of the module's stages
  uint64_t parameters = 0;
  uint32_t workers = 0;
  TaskThreads::Figures passes;
  uint64_t calls = 0, callsMax = 0;  ///< that wait or are computed
  uint64_t overloaded = 0;           ///< calls that were refused for their number
  uint64_t memoryBytes = 0, memoryBytesMax = 0;
  uint64_t ending = 0;  ///< sessions with the daemon, of trainers that are gone or have lost it
  uint64_t trainersMax = 0;
  std::vector<RemoteTrainerStatus> trainers;

  /// Why a trainer that came would be refused; empty: it would not.
  std::string full;
};

/// As docs/executor.md has it.
nlohmann::ordered_json statusJson(const ExecutorStatus& status);

}  // namespace psd

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/os/env.h"
#include "server/checkpoint/saved_partitions.h"

namespace psd {

/// A written folder, from which one daemon resumes.
struct WrittenPartition {
  std::string folder;
  ModelSpec model;
  uint64_t rows = 0;  ///< of all tables
};

/// Outcome of a repartition.
struct Repartitioned {
  std::vector<WrittenPartition> partitions;  ///< by partition number
  std::vector<std::string> notes;            ///< losses, one line each
};

/// Splits the saved model of some daemons for `daemons` others: the folder `to`, which must not exist or be
/// empty, gets a subfolder partition-N for each. Atomic: `to` is complete or untouched. If this process dies,
/// partial results stay in "TO.tmp.PID". Needs memory for the largest partition, old or new, and with logs
/// disk space for twice the whole model. ErrorCode::invalidArgument if the number of daemons would not
/// change, or the model cannot be partitioned so. Blocks.
Result<Repartitioned> repartition(Env& env, SavedPartitions& saved, uint32_t daemons, const std::string& to);

}  // namespace psd

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/os/env.h"
#include "server/checkpoint/saved_partitions.h"

namespace psd {

/// A folder that one of the daemons goes on from.
struct WrittenPartition {
  std::string folder;
  ModelSpec model;
  uint64_t rows = 0;  ///< of all tables
};

/// What came of a new division.
struct Repartitioned {
  std::vector<WrittenPartition> partitions;  ///< in their order
  std::vector<std::string> notes;            ///< what is lost, a line each
};

/// Divides what some daemons have left for `daemons` others: the folder `to`, which is not there or empty,
/// gets a folder partition-N for each. It is there whole or not at all, whatever happens; what was begun lies
/// beside it, "TO.tmp.PID", where this process died. Needs the memory of the largest partition, before or
/// after, and where there are logs the room on the disk of the whole model twice.
/// ErrorCode::invalidArgument where they are that many already, or the model cannot be cut so. Blocks.
Result<Repartitioned> repartition(Env& env, SavedPartitions& saved, uint32_t daemons, const std::string& to);

}  // namespace psd

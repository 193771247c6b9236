#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/status/status.h"
#include "common/types/model_layout.h"
#include "common/types/model_spec.h"

namespace psd {

/// One daemon's partition of a model, and its place in the whole. A value type.
struct ModelPartition {
  ModelSpec spec;                 ///< a complete model; its layout is [begin, begin + count) of the whole one
  uint64_t begin = 0, count = 0;  ///< elements; multiples of kLayoutGrainElements
};

/// Cuts a model into partitions for `daemons` daemons, in order, of nearly equal size in bytes. A cut goes
/// between two tensors if such a boundary is close enough, else between two rows of a tensor: the part of
/// "fc1.weight" with rows 0 to 127 is the tensor "fc1.weight[0:128]". Each partition has all tables, with the
/// rows that partitionOf() assigns to it, and carries the tensors of the whole model. A pure function, so
/// that all daemons and trainers agree. ErrorCode::invalidArgument if a partition would be empty, or a tensor
/// has the name of a part.
Result<std::vector<ModelPartition>> partitionModel(const ModelSpec& whole, uint32_t daemons);

/// The partition of a table row, by the hash of its id. Independent of the row shard, so that the row shards
/// of each daemon fill evenly.
uint32_t partitionOf(uint64_t rowHash, uint32_t daemons);

/// The whole-model tensor of which a partition's tensor is a part: "fc1.weight" of "fc1.weight[0:128]".
std::string_view wholeName(std::string_view name);

/// Joins all partitions, in order, into the whole model. ErrorCode::modelMismatch, naming what is missing, if
/// they are not the partitions of one model.
Result<ModelSpec> joinPartitions(const std::vector<ModelSpec>& partitions);

}  // namespace psd

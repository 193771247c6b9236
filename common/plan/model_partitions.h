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

/// What one of several daemons serves of a model, and where that lies in the whole. A value type.
struct ModelPartition {
  ModelSpec spec;  ///< a model by itself; its layout is [begin, begin + count) of the whole one
  uint64_t begin = 0, count = 0;  ///< elements; multiples of kLayoutGrainElements
};

/// Cuts a model for `daemons` daemons, in order, into partitions of nearly as many bytes. A cut goes between
/// two tensors where one of these places is near enough, else between two rows of a tensor: the part of
/// "fc1.weight" that has its rows 0 to 127 is the tensor "fc1.weight[0:128]". Each partition has all tables:
/// of their rows those that partitionOf() says. Each tells of the whole model. A pure function, on which all
/// daemons and trainers agree. ErrorCode::invalidArgument where a partition would hold nothing, or a tensor
/// is named as a part of one.
Result<std::vector<ModelPartition>> partitionModel(const ModelSpec& whole, uint32_t daemons);

/// The partition that has the row of a table, by the hash of its id. Independent of the row shard, so that
/// the row shards of each daemon fill evenly.
uint32_t partitionOf(uint64_t rowHash, uint32_t daemons);

/// The tensor that a tensor of a partition is a part of: "fc1.weight" of "fc1.weight[0:128]".
std::string_view wholeName(std::string_view name);

/// The whole model of all its partitions, in order. ErrorCode::modelMismatch, naming what is missing, where
/// they are not those of one model.
Result<ModelSpec> joinPartitions(const std::vector<ModelSpec>& partitions);

}  // namespace psd

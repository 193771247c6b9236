#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/codec/codec.h"
#include "common/types/all_reduce.h"
#include "common/types/ids.h"
#include "common/types/local_steps.h"
#include "trainer/client/transport/row_slices.h"
#include "trainer/client/transport/slices.h"

namespace psd {

/// What a daemon goes by that serves a model together with others. A value type.
struct ModelRules {
  std::string text;  ///< in which all agree: a line "KEY: VALUE" for each key of the configuration
  std::vector<uint32_t>
      emptyGroups;  ///< groups of the configuration that take nothing of the daemon's partition
};

/// What joining, or observing, came to; further connections of the same trainer go by it.
struct SessionTerms {
  Rank rank;
  uint64_t incarnation = 0;
  uint32_t attachment = 0;               ///< of the session, see the schema
  uint64_t leaseMs = 0;                  ///< 0: none is granted
  uint64_t daemon = 0;                   ///< random number of the daemon's process
  uint64_t epoch = 0;                    ///< in which it is the primary of its pair; 0: it has none
  ShardPlan plan;                        ///< its groups are the fragments of localSteps
  std::vector<Slice> slices;             ///< of the whole model
  std::vector<RowShardTerms> rowShards;  ///< numbered on after the plan's shards
  uint64_t sliceElementsMax = 0;         ///< that the daemon takes in one slice
  uint64_t outgoingBytes = 0;  ///< of answers that the daemon keeps for one connection; 0: it did not tell
  uint64_t rowValuesMax = 0;   ///< in one slice of rows
  std::shared_ptr<const Codec> codec;      ///< of pushes; null: float32
  std::shared_ptr<const Codec> pullCodec;  ///< of pulls; null: float32
  LocalSteps localSteps;
  AllReduceTerms allReduce;
  std::string policy, device;  ///< for people
  ModelRules rules;

  /// Parts of a gradient, and versions of a pull: one of each shard.
  size_t blockCount() const { return plan.shards.size() + rowShards.size(); }
  /// Whether a shard of the plan is of this fragment; nothing: of any.
  bool isOf(std::optional<uint32_t> fragment, ShardId shard) const {
    return !fragment || plan.shards[shard.value].group == *fragment;
  }
};

}  // namespace psd

#pragma once

#include <algorithm>
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

/// The rules of a daemon that serves a model together with others. A value type.
struct ModelRules {
  std::string text;  ///< equal at all daemons: a line "KEY: VALUE" for each key of the configuration
  std::vector<uint32_t>
      emptyGroups;  ///< parameter groups of the configuration that match nothing in the daemon's partition
};

/// The terms agreed on by joining or observing; further connections of the same trainer use them.
struct SessionTerms {
  Rank rank;
  uint64_t incarnation = 0;
  uint32_t attachment = 0;               ///< number of the join in the session, see the schema
  uint64_t leaseMs = 0;                  ///< 0: none is granted
  uint64_t daemon = 0;                   ///< random number of the daemon's process
  uint64_t term = 0;                     ///< term in which it is the primary; 0: it has no replica set
  ShardPlan plan;                        ///< its groups are the fragments of localSteps
  std::vector<Slice> slices;             ///< of the whole model
  std::vector<RowShardTerms> rowShards;  ///< numbered after the plan's shards
  uint64_t sliceElementsMax = 0;         ///< largest slice that the daemon accepts
  uint64_t outgoingBytes = 0;          ///< of answers that the daemon buffers for one connection; 0: unknown
  uint64_t rowValuesMax = 0;           ///< largest slice of rows
  std::shared_ptr<const Codec> codec;  ///< of pushes; null: float32
  std::shared_ptr<const Codec> pullCodec;  ///< of pulls; null: float32
  LocalSteps localSteps;
  AllReduceTerms allReduce;
  std::string policy, device;  ///< human-readable
  std::string optimizer;       ///< JSON; see JoinInfo
  bool takesHyperparameters = false;
  bool restoresState = false;  ///< the daemon has the calls of state_calls.h
  bool takesSparse = false;    ///< the daemon decodes topk in every push
  ModelRules rules;

  /// Whether a shard has a 16-bit dtype.
  bool hasSixteenBitShards() const {
    return std::ranges::any_of(plan.shards,
                               [](const ShardRange& shard) { return shard.dtype != DType::f32; });
  }
  /// Parts of a gradient, and versions of a pull: one per shard.
  size_t blockCount() const { return plan.shards.size() + rowShards.size(); }
  /// Whether a shard of the plan belongs to this fragment; empty: to any.
  bool isOf(std::optional<uint32_t> fragment, ShardId shard) const {
    return !fragment || plan.shards[shard.value].group == *fragment;
  }
};

}  // namespace psd

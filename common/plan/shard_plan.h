#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/status/status.h"
#include "common/types/ids.h"

namespace psd {

/// One shard: a contiguous range of the arena, in elements.
struct ShardRange {
  ShardId id;
  uint64_t begin = 0;
  uint64_t count = 0;
  uint32_t group = 0;  ///< parameter group that all of its elements belong to; the daemon's alone
  bool operator==(const ShardRange&) const = default;
};

/// Elements next to each other that belong to one parameter group.
struct GroupRun {
  uint64_t count = 0;
  uint32_t group = 0;
};

/// How an arena is cut. Immutable value type; a pure function of its inputs.
struct ShardPlan {
  std::vector<ShardRange> shards;

  /// Cuts `totalElements` into at most `shardCount` ranges balanced by bytes, each beginning at a
  /// multiple of `kLayoutGrainElements`. A model too small for `shardCount` non-empty ranges gets
  /// fewer.
  static ShardPlan make(uint64_t totalElements, uint32_t shardCount);
  /// Cuts runs of several groups that lie end to end: no shard reaches over the end of a run, so there are at
  /// least as many shards as runs, even if fewer are asked for. No run is empty; all but the last are
  /// multiples of the grain.
  static ShardPlan make(std::span<const GroupRun> runs, uint32_t shardCount);

  /// How many shards suit so many elements where nobody says: four, or more so that none is larger than
  /// 64 MiB of weights. Who waits for a shard's lock, or for its copy, waits for no more than that.
  static uint32_t countFor(uint64_t totalElements);

  uint64_t totalElements() const;
  /// An Error unless the ranges are numbered in order, not empty and cover [0, totalElements) without a gap.
  /// A model of embedding tables alone has none.
  Status validate() const;
};

/// Into how many units the space of the hashes of rows' ids is cut: the unit of a hash is its upper half.
inline constexpr uint64_t kRowHashUnits = uint64_t{1} << 32;

/// Cuts the space of hashes into `count` even ranges of units, for so many row shards. Numbers and groups are
/// the caller's to set.
std::vector<ShardRange> planRowShards(uint32_t count);

}  // namespace psd

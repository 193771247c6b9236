#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/status/status.h"
#include "common/types/ids.h"
#include "common/types/model_spec.h"

namespace psd {

/// One shard: a contiguous range of the arena, in elements of one dtype.
struct ShardRange {
  ShardId id;
  uint64_t begin = 0;
  uint64_t count = 0;
  uint32_t group = 0;  ///< parameter group of all its elements; used by the daemon only
  DType dtype = DType::f32;
  bool operator==(const ShardRange&) const = default;
};

/// Adjacent elements of one parameter group and dtype.
struct GroupRun {
  uint64_t count = 0;
  uint32_t group = 0;
  DType dtype = DType::f32;
};

/// The division of an arena into shards. Immutable value type; a pure function of its inputs.
struct ShardPlan {
  std::vector<ShardRange> shards;

  /// Cuts `totalElements` into at most `shardCount` ranges balanced by bytes, each beginning at a
  /// multiple of `kLayoutGrainElements`. A model too small for `shardCount` non-empty ranges gets
  /// fewer.
  static ShardPlan make(uint64_t totalElements, uint32_t shardCount);
  /// Cuts adjacent runs of several parameter groups: no shard crosses the end of a run, so there are at least
  /// as many shards as runs, even if fewer are requested. No run is empty; all but the last are multiples of
  /// the grain.
  static ShardPlan make(std::span<const GroupRun> runs, uint32_t shardCount);

  /// The default number of shards: four, or more so that none is larger than 64 MiB of weights. This bounds
  /// the wait for a shard's lock, or for its copy.
  static uint32_t countFor(uint64_t totalElements);

  uint64_t totalElements() const;
  /// An Error unless the ranges are numbered in order, not empty and cover [0, totalElements) without a gap.
  /// A model that has only embedding tables has no shards.
  Status validate() const;
  /// Sets the dtype of each shard of a plan that covers the layout of `model`. An Error if a shard has
  /// elements of several.
  Status readDtypes(const ModelSpec& model);
};

/// Number of units into which the space of row id hashes is divided: the unit of a hash is its upper half.
inline constexpr uint64_t kRowHashUnits = uint64_t{1} << 32;

/// Divides the space of hashes into `count` even ranges of units, one per row shard. The caller sets numbers
/// and parameter groups.
std::vector<ShardRange> planRowShards(uint32_t count);

}  // namespace psd

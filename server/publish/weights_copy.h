#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <vector>

#include "common/types/model_spec.h"
#include "server/checkpoint/checkpointer.h"
#include "server/publish/version_file.h"

namespace psd {

/// CRC-32C of the values in a dtype of a version: "F32", "BF16" or "F16". ErrorCode::nonFinite: some are
/// beyond its range.
Result<uint32_t> roundedChecksum(std::span<const float> values, std::string_view dtype);

/// Whether these weights, in the layout of the model, are those of a version, rounded to its dtypes.
/// ErrorCode::modelMismatch names a tensor that differs.
Status checkPublishedWeights(const VersionHeader& header, const ModelLayout& layout,
                             std::span<const float> weights);

/// A copy of all weights of a store at one moment, in the form in which they are published. The memory, 4
/// bytes for each element of the layout, is allocated and touched once, so that a copy under the shards'
/// locks causes no page faults. Owned by one thread.
///
/// The copy holds the locks of all shards, so that it is of one instant. Where several parameter groups are
/// updated in rounds, it waits, up to kRoundWait, for an instant at which they have finished the same round.
/// Groups whose updates take no lock are copied while they change.
class WeightsCopy {
 public:
  /// `as`: the dtype of all tensors; nullopt: each has that of the model. ErrorCode::overloaded if there is
  /// no memory.
  static Result<std::unique_ptr<WeightsCopy>> make(std::shared_ptr<ParameterStore> store,
                                                   std::optional<DType> as);

  struct Taken {
    uint64_t step = 0;  ///< number of updates that every shard contains
    /// Updates of each shard; empty if they continued during the copy.
    std::vector<uint64_t> shardVersions;
    VersionMoment moment = VersionMoment::live;
    double pauseSeconds = 0;  ///< longest time that an update waited for the copy
  };
  /// Copies the weights. nullopt: a group's policy changed meanwhile, and the copy is void. Blocks.
  Result<std::optional<Taken>> take(const CheckpointSource& source);
  /// Copies the weights of one parameter group alone, which the caller keeps from changing, and adds them to
  /// `taken`. Blocks.
  Status takeGroup(uint32_t group, Taken& taken);
  /// The parameter groups that have weights.
  std::set<uint32_t> groups() const;
  /// Converts the copy in place to the published dtypes; once after each take(), or after takeGroup() of all
  /// groups; valid until the next one. ErrorCode::nonFinite, naming the tensor, if a value is beyond the
  /// range of its dtype.
  Result<std::span<const std::byte>> convert();
  /// The published tensors.
  const ModelSpec& model() const { return model_; }
  const ParameterStore& store() const { return *store_; }

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  /// The locks of all shards, and of updates that span several.
  using Locks = std::vector<ShardLock::Guard>;
  static constexpr std::chrono::milliseconds kRoundWait{1'000}, kRoundPoll{2};

  WeightsCopy(std::shared_ptr<ParameterStore> store, std::optional<DType> as);
  /// Takes the locks of the groups whose updates take locks.
  Locks lock(const std::vector<CheckpointSource::Group>& groups, kj::WaitScope& scope) const;
  /// lock(), once the groups with rounds have finished the same one; `moment` says whether they have.
  Locks lockAtRound(const std::vector<CheckpointSource::Group>& groups, kj::WaitScope& scope,
                    Taken& taken) const;
  /// The longest time that an update has waited for one of the locks.
  static double pauseOf(const Locks& locks);
  /// Whether all groups with rounds have finished the same one.
  bool atSameRound(const std::vector<CheckpointSource::Group>& groups) const;
  float* elements() { return reinterpret_cast<float*>(memory_.get()); }
  Status copyShard(Shard& shard, Lane& lane);

  const std::shared_ptr<ParameterStore> store_;
  ModelSpec model_;
  std::unique_ptr<std::byte, Free> memory_;
};

}  // namespace psd

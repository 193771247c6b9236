#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/os/shared_memory.h"
#include "common/plan/shard_plan.h"
#include "common/types/ids.h"

namespace psd {

/// The daemon's live parameters, mapped into this process. Immutable except for the daemon's writes and those
/// of trainers that it allows; thread-safe.
class SharedModel {
 public:
  /// Byte offsets in the file; see schema/psd.capnp's SharedModel.
  struct Places {
    uint64_t valuesAt = 0;
    uint64_t versionsAt = 0;
    uint64_t versionStep = 0;
    uint64_t readableAt = 0;
  };

  /// Maps the file for reading; the caller keeps the descriptor.
  /// ErrorCode::protocolMismatch if the places are outside the file.
  static Result<std::unique_ptr<SharedModel>> open(int fd, const Places& places, const ShardPlan& plan);

  /// Whether the daemon currently allows the parameters to be read here.
  bool readable() const;
  /// The whole arena.
  std::span<const float> values() const;
  /// Per shard, the minimum version of values that are copied from now on.
  std::vector<Version> versions() const;
  /// Copies the arena from `begin`. `whole`: size, in elements, of the copy that this is a part of.
  void copy(uint64_t begin, std::span<float> destination, uint64_t whole) const;

 private:
  SharedModel(std::shared_ptr<SharedMemory> file, const Places& places, const ShardPlan& plan)
      : file_(std::move(file)), places_(places), plan_(plan) {}

  const std::shared_ptr<SharedMemory> file_;
  const Places places_;
  const ShardPlan plan_;
};

}  // namespace psd

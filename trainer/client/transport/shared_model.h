#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/os/shared_memory.h"
#include "common/plan/shard_plan.h"
#include "common/types/ids.h"

namespace psd {

/// The daemon's parameters, mapped into this process to be read while they change. Immutable but for what
/// the daemon writes, and those it lets write; thread-safe.
class SharedModel {
 public:
  /// Where things lie in the file, bytes; as schema/psd.capnp's SharedModel says.
  struct Places {
    uint64_t valuesAt = 0;
    uint64_t versionsAt = 0;
    uint64_t versionStep = 0;
    uint64_t readableAt = 0;
  };

  /// Maps the file, for writing too if the daemon lets us; the descriptor stays the caller's.
  /// ErrorCode::protocolMismatch when the places are not in it.
  static Result<std::unique_ptr<SharedModel>> open(int fd, const Places& places, const ShardPlan& plan);

  /// Whether the daemon lets the parameters be read here now.
  bool readable() const;
  /// The whole arena.
  std::span<const float> values() const;
  /// The whole arena, to be written; empty where the daemon lets nobody write it.
  std::span<float> writableValues() const;
  /// Per shard, the version that values which are copied from now on have at least.
  std::vector<Version> versions() const;
  /// Copies the arena from `begin` on. `whole`: elements of the copy that this is a part of.
  void copy(uint64_t begin, std::span<float> destination, uint64_t whole) const;

 private:
  SharedModel(std::shared_ptr<SharedMemory> file, SharedAccess access, const Places& places,
              const ShardPlan& plan)
      : file_(std::move(file)), access_(access), places_(places), plan_(plan) {}

  std::span<float> floats() const;

  const std::shared_ptr<SharedMemory> file_;
  const SharedAccess access_;
  const Places places_;
  const ShardPlan plan_;
};

}  // namespace psd

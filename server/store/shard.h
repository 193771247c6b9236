#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "server/store/parameter_block.h"
#include "server/store/shard_storage.h"

namespace psd {

/// An immutable copy of a shard's weights at one version, shared by all pulls of that version.
struct ShardSnapshot {
  Version version;
  ReadView view;  ///< the whole shard
  ByteBudget::Lease room = {};
};

/// A dense shard: a contiguous range of the arena, with its storage. Thread-safety is documented per member.
class Shard final : public ParameterBlock {
 public:
  Shard(ShardRange range, size_t device, std::unique_ptr<ShardStorage> storage)
      : ParameterBlock(range, device, versionIn(*storage)),
        storage_(std::move(storage)),
        place_(storage_->sharedPlace()) {}

  ShardStorage& storage() { return *storage_; }
  const ShardStorage& storage() const { return *storage_; }
  const Optimizer& optimizer() const override { return storage_->optimizer(); }
  const std::optional<SharedPlace>& sharedPlace() const { return place_; }

  /// The latest snapshot, while a pull still uses it. The lock must be held.
  std::weak_ptr<const ShardSnapshot>& lastSnapshot() { return lastSnapshot_; }

 private:
  /// The version counter in the memory file if the weights are in one; else null.
  static std::atomic<uint64_t>* versionIn(const ShardStorage& storage) {
    const auto place = storage.sharedPlace();
    return place ? &sharedWord(*place->file, place->versionAt) : nullptr;
  }

  std::unique_ptr<ShardStorage> storage_;
  const std::optional<SharedPlace> place_;
  std::weak_ptr<const ShardSnapshot> lastSnapshot_;
};

}  // namespace psd

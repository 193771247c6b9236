#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "server/store/parameter_block.h"
#include "server/store/shard_storage.h"

namespace psd {

/// A copy of a shard's weights as they were at one version, shared by all pulls of that version.
struct ShardSnapshot {
  Version version;
  ReadView view;  ///< the whole shard
  ByteBudget::Lease room = {};
};

/// One dense shard: a contiguous range of the arena and its storage. Thread-safe as each member says.
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

  /// The last snapshot, while a pull still uses it. Only with the lock held.
  std::weak_ptr<const ShardSnapshot>& lastSnapshot() { return lastSnapshot_; }

 private:
  /// The version's word in the memory file where the weights lie in one.
  static std::atomic<uint64_t>* versionIn(const ShardStorage& storage) {
    const auto place = storage.sharedPlace();
    return place ? &sharedWord(*place->file, place->versionAt) : nullptr;
  }

  std::unique_ptr<ShardStorage> storage_;
  const std::optional<SharedPlace> place_;
  std::weak_ptr<const ShardSnapshot> lastSnapshot_;
};

}  // namespace psd

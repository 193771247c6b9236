#pragma once

#include <algorithm>
#include <memory>
#include <utility>

#include "server/store/staging_pool.h"
#include "test/support/forwarding_backend.h"

namespace psd::testing {

/// The CPU backend with memory of its own for staged gradients, like a device. Thread-safe.
class DeviceBackend final : public WrappingBackend {
 public:
  void limitStagedBytes(uint64_t bytes) override { pool_->setLentBytesMax(bytes); }
  /// Bytes in use for staged gradients.
  uint64_t stagedBytes() const { return pool_->lentBytes(); }

 private:
  class Storage final : public ForwardingStorage {
   public:
    Storage(std::unique_ptr<ShardStorage> inner, std::shared_ptr<StagingPool> pool)
        : ForwardingStorage(std::move(inner)), pool_(std::move(pool)) {}

    void stage(Lane&, ReadView gradient, StageDone done) override {
      const auto memory = acquireForGradient(*pool_, gradient.values.size());
      if (!memory.ok()) return done(memory.error());
      std::copy(gradient.values.begin(), gradient.values.end(), memory->get());
      done(StagedGradient{{memory->get(), gradient.values.size()}, *memory});
    }

   private:
    const std::shared_ptr<StagingPool> pool_;
  };

  std::unique_ptr<ShardStorage> wrap(std::unique_ptr<ShardStorage> storage) override {
    return std::make_unique<Storage>(std::move(storage), pool_);
  }

  const std::shared_ptr<StagingPool> pool_ =
      StagingPool::make(StagingPool::hostMemory(), {.lentBytesMax = UINT64_MAX, .idleBytesMax = 0});
};

}  // namespace psd::testing

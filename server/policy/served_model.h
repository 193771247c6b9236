#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "server/policy/published_values.h"
#include "server/policy/update_policy.h"
#include "server/store/parameter_store.h"

namespace psd {

/// One policy per parameter group that has tensors.
using Policies = std::vector<std::shared_ptr<UpdatePolicy>>;

/// The model that the daemon serves: its parameters and the policies that update them. Shared by all event
/// loops; thread-safe.
class ServedModel {
 public:
  ServedModel(std::unique_ptr<ParameterStore> parameters, Policies policies,
              std::shared_ptr<StagingPool> pool)
      : store(std::move(parameters)), staging(std::move(pool)), policies_(std::move(policies)) {
    recordStartVersions();
  }

  const std::unique_ptr<ParameterStore> store;
  const std::shared_ptr<StagingPool> staging;  ///< for gathered differences
  PublishedValues published;                   ///< for trainers that pull differences
  std::atomic<bool> restoring{false};  ///< a trainer sends values and optimizer state that replace these

  Policies policies() const {
    const std::lock_guard lock(mutex_);
    return policies_;
  }
  void setPolicies(Policies policies) {
    const std::lock_guard lock(mutex_);
    policies_ = std::move(policies);
    generation_++;
  }
  /// Increases when the policies change. Readers that cache the policies compare it without taking a lock.
  uint64_t generation() const { return generation_; }
  /// Records the current versions of the blocks as those that this daemon started with (see began()).
  void recordStartVersions() {
    const std::lock_guard lock(mutex_);
    began_.clear();
    for (size_t i = 0; i < store->blockCount(); i++) began_.push_back(store->block(i).version());
  }
  /// The versions of the blocks at the last recordStartVersions(). If the previous daemon had higher ones,
  /// updates are lost.
  std::vector<Version> began() const {
    const std::lock_guard lock(mutex_);
    return began_;
  }
  /// Marks this model as replaced by another one; readers check retired().
  void retire() { retired_ = true; }
  bool retired() const { return retired_; }
  std::shared_ptr<UpdatePolicy> policyOf(const ParameterBlock& block) const {
    const std::lock_guard lock(mutex_);
    return policies_[block.group()];
  }

 private:
  mutable std::mutex mutex_;
  Policies policies_;
  std::vector<Version> began_;
  std::atomic<uint64_t> generation_{1};
  std::atomic<bool> retired_{false};
};

}  // namespace psd

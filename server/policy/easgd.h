#pragma once

#include "server/policy/locked.h"

namespace psd {

/// Elastic averaging (EASGD; Zhang, Choromanska, LeCun 2015), asynchronous: trainers take `period` local
/// steps, then pull the center w̃ and push w̃ − w. The daemon updates w̃ ← w̃ − alpha · (w̃ − w) under the
/// shard's lock, and the trainer w ← w + alpha · (w̃ − w). Thread-safe.
class Easgd final : public UpdatePolicy {
 public:
  static PolicyPlan read(ConfigReader options);
  explicit Easgd(const PolicyScope& scope) : updates_(scope, Modifiers()) {}

  std::string_view name() const override { return "easgd"; }
  Properties properties() const override { return {.completesPushes = true}; }
  kj::Promise<Result<PushAnswer>> push(Shard& shard, Lane& lane, ShardPush& push, uint64_t offset,
                                       Gradient gradient) override {
    return updates_.push(shard, lane, push, offset, gradient);
  }
  kj::Promise<Result<PullAnswer>> pull(Shard& shard, Lane& lane, ShardPull& pull, uint64_t offset,
                                       uint64_t count) override {
    return updates_.pull(shard, lane, pull, offset, count);
  }

 private:
  Locked updates_;
};

}  // namespace psd

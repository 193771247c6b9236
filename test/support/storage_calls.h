#pragma once

#include <chrono>
#include <future>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "server/store/backend.h"

namespace psd::testing {

/// Calls `start(done)` and waits up to a minute for `done`. Outcome is Status or a Result.
template <class Outcome, class Start>
Outcome waitFor(Start start) {
  auto promise = std::make_shared<std::promise<Outcome>>();
  auto future = promise->get_future();
  start([promise](Outcome outcome) { promise->set_value(std::move(outcome)); });
  if (future.wait_for(std::chrono::minutes(1)) != std::future_status::ready) {
    return Error{ErrorCode::deadlineExceeded, "the storage did not answer within a minute"};
  }
  return future.get();
}

/// A storage wrapped in blocking calls. Owned by one thread, like its lane.
class StorageCalls {
 public:
  StorageCalls(Backend& backend, ShardStorage& storage) : lane_(backend.makeLane()), storage_(storage) {}

  Status write(uint64_t offset, std::span<const float> values) {
    return waitFor<Status>([&](auto done) { storage_.write(*lane_, offset, values, done); });
  }
  Status apply(uint64_t offset, const Gradient& gradient, const UpdateScalars& update) {
    return waitFor<Status>([&](auto done) { storage_.apply(*lane_, offset, gradient, update, done); });
  }
  Status applyChanged(uint64_t offset, const Gradient& gradient, const GradientChange& change,
                      const UpdateScalars& update) {
    return waitFor<Status>(
        [&](auto done) { storage_.applyChanged(*lane_, offset, gradient, change, update, done); });
  }
  Result<StagedGradient> stage(ReadView gradient) {
    return waitFor<Result<StagedGradient>>([&](auto done) { storage_.stage(*lane_, gradient, done); });
  }
  Result<InnerProducts> addProducts(std::span<const StagedGradient> gradients, uint64_t offset,
                                    uint64_t count, InnerProducts sums) {
    return waitFor<Result<InnerProducts>>(
        [&](auto done) { storage_.addProducts(*lane_, gradients, offset, count, std::move(sums), done); });
  }
  Result<SquaredDistances> squaredDistances(std::span<const StagedGradient> gradients) {
    return waitFor<Result<SquaredDistances>>(
        [&](auto done) { storage_.squaredDistances(*lane_, gradients, done); });
  }
  Result<double> combinedSquare(std::span<const StagedGradient> gradients, const Combination& combination) {
    return waitFor<Result<double>>(
        [&](auto done) { storage_.combinedSquare(*lane_, gradients, combination, done); });
  }
  Status applyCombined(std::span<const StagedGradient> gradients, const Combination& combination,
                       const UpdateScalars& update) {
    return waitFor<Status>(
        [&](auto done) { storage_.applyCombined(*lane_, gradients, combination, update, done); });
  }
  Result<ReadView> combine(std::span<const StagedGradient> gradients, const Combination& combination) {
    return waitFor<Result<ReadView>>(
        [&](auto done) { storage_.combine(*lane_, gradients, combination, done); });
  }
  Result<ReadView> read(uint64_t offset, uint64_t count) {
    return waitFor<Result<ReadView>>([&](auto done) { storage_.read(*lane_, offset, count, done); });
  }
  Result<ReadView> snapshot(uint64_t offset, uint64_t count) {
    return waitFor<Result<ReadView>>([&](auto done) { storage_.snapshot(*lane_, offset, count, done); });
  }
  Result<ReadView> readSlot(uint32_t slot, uint64_t offset, uint64_t count) {
    return waitFor<Result<ReadView>>(
        [&](auto done) { storage_.readSlot(*lane_, slot, offset, count, done); });
  }
  Status writeSlot(uint32_t slot, uint64_t offset, std::span<const float> values) {
    return waitFor<Status>([&](auto done) { storage_.writeSlot(*lane_, slot, offset, values, done); });
  }
  Result<StagedGradient> take(std::span<const float> onDevice) {
    return waitFor<Result<StagedGradient>>([&](auto done) { storage_.take(*lane_, onDevice, done); });
  }
  Result<ReadView> fetch(std::span<const float> onDevice) {
    return waitFor<Result<ReadView>>([&](auto done) { storage_.fetch(*lane_, onDevice, done); });
  }
  Status readTo(uint64_t offset, std::span<float> onDevice) {
    return waitFor<Status>([&](auto done) { storage_.readTo(*lane_, offset, onDevice, done); });
  }
  Status put(std::span<const float> values, std::span<float> onDevice) {
    return waitFor<Status>([&](auto done) { storage_.put(*lane_, values, onDevice, done); });
  }
  Lane& lane() { return *lane_; }

 private:
  std::unique_ptr<Lane> lane_;
  ShardStorage& storage_;
};

inline std::vector<float> copyOf(const ReadView& view) { return {view.values.begin(), view.values.end()}; }

}  // namespace psd::testing

#pragma once

#include <functional>
#include <string>
#include <vector>

#include <kj/async.h>

#include "common/status/status.h"

namespace psd {

/// Checkpoints requested by operators, one at a time. A request during a checkpoint waits for the next one;
/// all waiting requests share it. Owned by one event loop's thread.
class CheckpointRequests final : private kj::TaskSet::ErrorHandler {
 public:
  using Outcome = Result<std::string>;  ///< the checkpoint's path

  /// `take` takes a checkpoint that starts after the call; it is not called again before its promise
  /// resolves.
  explicit CheckpointRequests(std::function<kj::Promise<Outcome>()> take)
      : take_(std::move(take)), tasks_(*this) {}
  ~CheckpointRequests() noexcept = default;

  /// Requests a checkpoint that starts after this call. It is taken even if the caller drops the promise.
  kj::Promise<Outcome> ask();

 private:
  using Waiting = std::vector<kj::Own<kj::PromiseFulfiller<Outcome>>>;

  void begin();
  void end(const Outcome& outcome);
  void taskFailed(kj::Exception&& exception) override;

  const std::function<kj::Promise<Outcome>()> take_;
  Waiting served_;  // requests for the checkpoint in progress; empty: none in progress
  Waiting next_;    // requests for the next one
  kj::TaskSet tasks_;
};

}  // namespace psd

#pragma once

#include <functional>
#include <string>
#include <vector>

#include <kj/async.h>

#include "common/status/status.h"

namespace psd {

/// The checkpoints that operators ask for, one at a time. Who asks while one is being taken waits for one
/// that begins after that; all who wait share it. Owned by one event loop's thread.
class AskedCheckpoints final : private kj::TaskSet::ErrorHandler {
 public:
  using Outcome = Result<std::string>;  ///< the checkpoint's path

  /// `take` takes a checkpoint that begins after the call; it is not called again before its promise is done.
  explicit AskedCheckpoints(std::function<kj::Promise<Outcome>()> take)
      : take_(std::move(take)), tasks_(*this) {}
  ~AskedCheckpoints() noexcept = default;

  /// A checkpoint that begins after this call. It is taken even if the caller does not wait for it.
  kj::Promise<Outcome> ask();

 private:
  using Waiting = std::vector<kj::Own<kj::PromiseFulfiller<Outcome>>>;

  void begin();
  void end(const Outcome& outcome);
  void taskFailed(kj::Exception&& exception) override;

  const std::function<kj::Promise<Outcome>()> take_;
  Waiting served_;  // whom the one that is being taken is for; empty: none is being taken
  Waiting next_;    // whom the one after it is for
  kj::TaskSet tasks_;
};

}  // namespace psd

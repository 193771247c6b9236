#pragma once

#include <chrono>
#include <functional>

#include "common/status/status.h"
#include "trainer/client/api/client.h"
#include "trainer/dataset/dataset.h"
#include "trainer/eval/evaluate.h"
#include "trainer/model/model.h"

namespace psd {

/// Scores a daemon's model periodically while others train it. Owned by one thread; the client and the model
/// outlive it.
class Watch {
 public:
  using Milliseconds = std::chrono::milliseconds;
  /// Called with each report and the seconds since the watch began, when its values were pulled. Its error
  /// ends the watch.
  using WhenScored = std::function<Status(const EvalReport& report, double seconds)>;
  /// Waits for the given time; true as soon as the watch is to end. Called with 0 between two batches.
  using Pause = std::function<bool(Milliseconds)>;

  Watch(Client& client, Model& model, const Dataset& dataset)
      : client_(client), model_(model), dataset_(dataset) {}

  /// Starts a score every `every`, the first immediately; a score that takes longer delays the next one.
  /// While the daemon has no model, it is polled at the same interval, and `whenWaiting` is called once.
  /// Returns OK when `pause` returns true; otherwise the error that ended the watch, for which daemonEnded()
  /// holds if the daemon ended.
  Status run(Milliseconds every, const Pause& pause, const WhenScored& whenScored,
             const std::function<void(const Error&)>& whenWaiting);

  /// Whether the error means that the daemon ended or is shutting down.
  static bool daemonEnded(const Error& error) {
    return error.code == ErrorCode::unavailable || error.code == ErrorCode::shuttingDown;
  }

 private:
  Client& client_;
  Model& model_;
  const Dataset& dataset_;
};

}  // namespace psd

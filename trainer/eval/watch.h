#pragma once

#include <chrono>
#include <functional>

#include "common/status/status.h"
#include "trainer/client/client.h"
#include "trainer/dataset/dataset.h"
#include "trainer/eval/evaluate.h"
#include "trainer/model/model.h"

namespace psd {

/// Scores a daemon's model again and again while others train it. Owned by one thread, like the client and
/// the model, which outlive it.
class Watch {
 public:
  using Milliseconds = std::chrono::milliseconds;
  /// Called with each report and the seconds since the watch began, when its values were pulled. Its error
  /// ends the watch.
  using WhenScored = std::function<Status(const EvalReport& report, double seconds)>;
  /// Waits so long, or until the watch is to end; then true. Asked with 0 between two batches.
  using Pause = std::function<bool(Milliseconds)>;

  Watch(Client& client, Model& model, const Dataset& dataset)
      : client_(client), model_(model), dataset_(dataset) {}

  /// Begins a score every `every`, the first at once, or as soon as the one before it is done. While the
  /// daemon has no model it is asked for one as often, which `whenWaiting` hears of once. Returns when
  /// `pause` says so; otherwise with the error that ended it: of the daemon's end one of isDaemonsEnd().
  Status run(Milliseconds every, const Pause& pause, const WhenScored& whenScored,
             const std::function<void(const Error&)>& whenWaiting);

  /// Whether the daemon that was watched is gone, or about to go.
  static bool isDaemonsEnd(const Error& error) {
    return error.code == ErrorCode::unavailable || error.code == ErrorCode::shuttingDown;
  }

 private:
  Client& client_;
  Model& model_;
  const Dataset& dataset_;
};

}  // namespace psd

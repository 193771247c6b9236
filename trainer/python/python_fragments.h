#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <type_traits>
#include <vector>

#include "trainer/exchange/fragment_exchange.h"
#include "trainer/python/array_arguments.h"
#include "trainer/python/errors.h"
#include "trainer/python/shared_client.h"

namespace psd::python {

/// A FragmentExchange for Python, which keeps its arrays alive; after an exchange its array has the values
/// for the next step. With the GIL. During a call, other threads, signal handlers and callbacks can only read
/// how the training went.
class PythonFragments {
 public:
  /// `info`: the result of join(). Both arrays must be aligned.
  PythonFragments(std::shared_ptr<SharedClient> client, const JoinInfo& info, Values parameters,
                  Values spare);
  PythonFragments(PythonFragments&&) = default;
  PythonFragments& operator=(PythonFragments&&) = default;
  ~PythonFragments();

  /// See FragmentExchange.
  void begin();
  /// Counts a step; returns whether an exchange is due.
  bool stepped(uint32_t samples);
  bool due();
  void exchange(bool last);
  void settle();

  /// How the training went, as of the last call that has returned.
  struct Progress {
    uint64_t steps = 0, rounds = 0;  ///< FragmentExchange::progress() and rounds()
    std::vector<uint64_t> versions;
    std::optional<PushInfo> lastPush;  ///< the outcome of the last push that was answered
    uint64_t late = 0;                 ///< how often a difference was discarded
  };
  Progress progress() const;

 private:
  /// Used without the GIL.
  struct State {
    std::mutex mutex;  // held by a call, also while it waits; guards the arrays and the exchange
    Values parameters, spare;
    std::optional<FragmentExchange> exchange;
    std::mutex progressMutex;  // guards the rest
    Progress progress;

    /// Updates the progress, with the mutex held.
    void publish();
  };

  /// Runs `work(exchange)` without the GIL, and returns its result; throws if another call is in progress. If
  /// a signal handler raises, throws its exception; calls of the exchange may continue.
  template <class Work>
  auto run(const Work& work) {
    return take(client_->run([&](Client&) -> Result<std::invoke_result_t<Work, FragmentExchange&>> {
      const std::unique_lock lock(state_->mutex, std::try_to_lock);
      if (!lock) return Error{ErrorCode::invalidArgument, "an exchange is in progress"};
      auto result = work(*state_->exchange);
      state_->publish();
      return result;
    }));
  }

  std::shared_ptr<SharedClient> client_;
  std::shared_ptr<State> state_;  // null once moved from
};

}  // namespace psd::python

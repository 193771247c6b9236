#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "trainer/exchange/fragment_exchange.h"
#include "trainer/python/array_arguments.h"
#include "trainer/python/shared_client.h"

namespace psd::python {

/// A FragmentExchange for Python, which keeps its arrays alive; after an exchange its array has the values
/// for the next step. With the GIL.
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
  uint64_t progress();
  uint64_t rounds();
  std::vector<uint64_t> versions();

  /// The outcome of the last push that was answered.
  std::optional<PushInfo> lastPush();
  /// How often a difference was discarded.
  uint64_t late();

 private:
  /// Used without the GIL.
  struct State {
    std::mutex mutex;  // guards the rest
    Values parameters, spare;
    std::optional<FragmentExchange> exchange;
    std::optional<PushInfo> lastPush;
    uint64_t late = 0;
    bool broken = false;  // a signal has ended an exchange, whose calls may continue

    bool finished() {
      const std::lock_guard lock(mutex);
      return !broken && exchange->finished();
    }
  };

  /// Runs `work(state)` without the GIL. If a signal handler raises, throws its exception.
  template <class Work>
  auto run(const Work& work) {
    const auto locked = [&](Client&) {
      const std::lock_guard lock(state_->mutex);
      return work(*state_);
    };
    try {
      return client_->run(locked);
    } catch (...) {
      state_->broken = true;
      throw;
    }
  }

  std::shared_ptr<SharedClient> client_;
  std::shared_ptr<State> state_;  // null once moved from
};

}  // namespace psd::python

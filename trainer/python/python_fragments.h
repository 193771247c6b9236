#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "trainer/exchange/fragment_exchange.h"
#include "trainer/python/array_arguments.h"
#include "trainer/python/owned_client.h"

namespace psd::python {

/// A FragmentExchange for Python, with the arrays that it uses. With the GIL.
class PythonFragments {
 public:
  /// `info`: what join() gave. Both arrays are aligned.
  PythonFragments(std::shared_ptr<OwnedClient> client, const JoinInfo& info, Values parameters, Values spare);
  PythonFragments(PythonFragments&&) = default;
  PythonFragments& operator=(PythonFragments&&) = default;
  ~PythonFragments();

  /// See FragmentExchange.
  void begin();
  /// Also whether an exchange is due.
  bool stepped(uint32_t samples);
  void exchange(bool last);
  void settle();
  uint64_t progress();

  /// Of the newest push that is answered.
  std::optional<PushInfo> lastPush();
  /// Times that what the steps came to was dropped.
  uint64_t late();

 private:
  /// Used on the client's thread.
  struct State {
    Values parameters, spare;
    std::optional<FragmentExchange> exchange;
    std::optional<PushInfo> lastPush;
    uint64_t late = 0;
  };

  /// Runs `work(state)` on the client's thread.
  template <class Work>
  auto run(Work work) {
    return client_->run([state = state_, work = std::move(work)](Client&) { return work(*state); });
  }

  std::shared_ptr<OwnedClient> client_;
  std::shared_ptr<State> state_;  // null once moved from
};

}  // namespace psd::python

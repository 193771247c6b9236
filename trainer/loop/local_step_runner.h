#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/types/local_steps.h"
#include "trainer/client/api/client.h"
#include "trainer/loop/inner_steps.h"
#include "trainer/model/model.h"

namespace psd {

/// A trainer's local steps and its exchanges with the daemon, under local SGD (also as SlowMo's inner loop),
/// DiLoCo and EASGD (Zhang, Choromanska, LeCun 2015). The state of the inner optimizer persists across
/// exchanges. Owned by one thread, like the client and the model, which outlive it; the model has spare
/// parameters.
class LocalStepRunner {
 public:
  LocalStepRunner(Client& client, Model& model, const LocalSteps& local)
      : client_(client), model_(model), local_(local), inner_(optimizerOf(local)) {}

  /// Pulls the parameters for the next step, if they come from the daemon.
  Status begin();
  /// Updates the parameters by the model's gradients, computed from `samples` samples. Returns the learning
  /// rate.
  double step(uint32_t samples);
  /// Whether an exchange is due: after `period` steps, after the last step, or when the round is about to
  /// close.
  bool due(bool last);
  /// Whether the round closed without these steps; if so, they are dropped, and the next begin() starts with
  /// the open round. Call after step().
  bool dropLateSteps();
  /// Starts a push, with step number `number`, of the difference made since the last exchange; the model's
  /// spare parameters hold it until it is answered. EASGD pulls first and also moves the trainer's
  /// parameters.
  Result<Pending<PushInfo>> exchange(uint64_t number);

 private:
  static InnerOptimizer optimizerOf(const LocalSteps& local) {
    return local.inner.value_or(InnerOptimizer{.rate = local.rate});
  }
  bool elastic() const { return local_.alpha != 0; }
  Status pull(std::span<float> into);
  /// State of the round, as far as known.
  std::optional<RoundDue> roundDue();

  Client& client_;
  Model& model_;
  const LocalSteps local_;
  InnerSteps inner_;
  uint64_t steps_ = 0;  // since the last exchange
  uint64_t samples_ = 0;
  bool begun_ = false;
  std::vector<Version> basis_;             // of the last pull
  std::optional<Pending<RoundDue>> call_;  // completes when the round is due or closed
  std::optional<RoundDue> due_;            // its result
};

}  // namespace psd

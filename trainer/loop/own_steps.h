#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/types/local_steps.h"
#include "trainer/client/client.h"
#include "trainer/loop/inner_steps.h"
#include "trainer/model/model.h"

namespace psd {

/// A trainer's steps by itself and its exchanges with the daemon, under local SGD (also as SlowMo's inner
/// loop), DiLoCo and EASGD (Zhang, Choromanska, LeCun 2015). What the inner optimizer keeps stays with the
/// trainer over all exchanges. Owned by one thread, like the client and the model, which outlive it; the
/// model has spare parameters.
class OwnSteps {
 public:
  OwnSteps(Client& client, Model& model, const LocalSteps& local)
      : client_(client), model_(model), local_(local), inner_(optimizerOf(local)) {}

  /// Brings the parameters that the next step begins with, if they come from the daemon.
  Status begin();
  /// Changes the parameters by the model's gradients. `samples`: behind them. Gives the step's rate.
  double step(uint32_t samples);
  /// Whether it is time for an exchange: after `period` steps, after the last one, and where the round is
  /// about to close.
  bool due(bool last);
  /// Whether the round of these steps has closed without them: they are dropped, and the next begin() is of
  /// the round that is open. To be asked after step().
  bool droppedSteps();
  /// Starts a push, the trainer's `number`th, of what the steps since the last exchange came to; the model's
  /// spare parameters hold it until it is answered. EASGD pulls first, and moves the trainer's parameters.
  Result<Pending<PushInfo>> exchange(uint64_t number);

 private:
  static InnerOptimizer optimizerOf(const LocalSteps& local) {
    return local.inner.value_or(InnerOptimizer{.rate = local.rate});
  }
  bool elastic() const { return local_.alpha != 0; }
  Status pull(std::span<float> into);
  /// How the round stands, as far as that is known.
  std::optional<RoundDue> roundDue();

  Client& client_;
  Model& model_;
  const LocalSteps local_;
  InnerSteps inner_;
  uint64_t steps_ = 0;  // since the last exchange
  uint64_t samples_ = 0;
  bool begun_ = false;
  std::vector<Version> basis_;             // of the last pull
  std::optional<Pending<RoundDue>> call_;  // that tells of the round's end
  std::optional<RoundDue> due_;            // what it told
};

}  // namespace psd

#pragma once

#include <cstdint>
#include <vector>

#include "common/types/local_steps.h"
#include "trainer/client/client.h"
#include "trainer/model/model.h"

namespace psd {

/// A trainer's steps by itself and its exchanges with the daemon, under local SGD (also as SlowMo's inner
/// loop) and EASGD (Zhang, Choromanska, LeCun 2015). Owned by one thread, like the client and the model,
/// which outlive it; the model has spare parameters.
class OwnSteps {
 public:
  OwnSteps(Client& client, Model& model, const LocalSteps& local)
      : client_(client), model_(model), local_(local) {}

  /// Brings the parameters that the next step begins with, if they come from the daemon.
  Status begin();
  /// w ← w − rate · gradient. `samples`: behind it.
  void step(uint32_t samples);
  /// Whether it is time for an exchange: after `period` steps, and after the last one.
  bool due(bool last) const { return steps_ == local_.period || last; }
  /// Starts a push, the trainer's `number`th, of what the steps since the last exchange came to; the model's
  /// spare parameters hold it until it is answered. EASGD pulls first, and moves the trainer's parameters.
  Result<Pending<PushInfo>> exchange(uint64_t number);

 private:
  bool elastic() const { return local_.alpha != 0; }
  Status pull(std::span<float> into);

  Client& client_;
  Model& model_;
  const LocalSteps local_;
  uint64_t steps_ = 0;  // since the last exchange
  uint64_t samples_ = 0;
  bool begun_ = false;
  std::vector<Version> basis_;  // of the last pull
};

}  // namespace psd

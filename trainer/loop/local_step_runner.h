#pragma once

#include <cstdint>
#include <vector>

#include "common/types/local_steps.h"
#include "trainer/exchange/fragment_exchange.h"
#include "trainer/loop/inner_steps.h"
#include "trainer/model/model.h"

namespace psd {

/// A trainer's local steps and their exchanges. The state of the inner optimizer persists across exchanges.
/// The model has spare parameters for these. Owned by one thread; the client and the model outlive it.
class LocalStepRunner {
 public:
  LocalStepRunner(Client& client, Model& model, const LocalSteps& local,
                  const std::vector<ShardRange>& shards, FragmentExchange::Observer observer);

  /// Call before each step: pulls the parameters, if they come from the daemon.
  Status begin();
  /// Updates the parameters by the model's gradients, computed from `samples` samples. Returns the learning
  /// rate.
  double step(uint32_t samples);
  /// Call after each step; see FragmentExchange.
  Status exchange(bool last);
  Status settle();

 private:
  /// Adds the location of a rejected value.
  Status withLocation(Status status);

  Model& model_;
  const InnerOptimizer optimizer_;
  InnerSteps inner_;
  FragmentExchange exchange_;
  bool begun_ = false;
};

}  // namespace psd

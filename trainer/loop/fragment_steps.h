#pragma once

#include <cstdint>
#include <vector>

#include "common/types/local_steps.h"
#include "trainer/exchange/fragment_exchange.h"
#include "trainer/loop/inner_steps.h"
#include "trainer/model/model.h"

namespace psd {

/// A trainer's steps by itself under DiLoCo in fragments, and their exchanges, for which the model has spare
/// parameters. Owned by one thread, like the client and the model, which outlive it.
class FragmentSteps {
 public:
  FragmentSteps(Client& client, Model& model, const LocalSteps& local, const std::vector<ShardRange>& shards,
                FragmentExchange::Observer observer);

  /// Before each step: brings the parameters, once.
  Status begin();
  /// Changes the parameters by the model's gradients. `samples`: behind them. Gives the step's rate.
  double step(uint32_t samples);
  /// After a step, see FragmentExchange.
  Status exchange(bool last);
  Status settle();

 private:
  /// Says where a refused value is.
  Status explained(Status status);

  Model& model_;
  const InnerOptimizer optimizer_;
  InnerSteps inner_;
  FragmentExchange exchange_;
  bool begun_ = false;
};

}  // namespace psd

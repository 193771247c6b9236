#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>

#include "common/status/status.h"
#include "trainer/client/client.h"
#include "trainer/model/model.h"

namespace psd {

/// One push that was begun.
struct PushInFlight {
  uint64_t step = 0;
  uint64_t epoch = 0;
  double loss = 0;
  std::span<const float> gradient;       ///< unchanged until the answer is taken
  std::shared_ptr<const RowBatch> rows;  ///< likewise; null: the model has no tables
  Pending<PushInfo> answer;
};

/// The pushes of a trainer whose answers it has not taken yet, oldest first. Owned by one thread.
class PushesInFlight {
 public:
  /// `whenAnswered` gets every accepted push's answer, in the order of the steps.
  PushesInFlight(Model& model, std::function<void(const PushInfo&)> whenAnswered)
      : model_(model), whenAnswered_(std::move(whenAnswered)) {}

  void add(PushInFlight push) { pushes_.push_back(std::move(push)); }
  uint64_t count() const { return pushes_.size(); }

  /// Takes the answers that are there and waits for as many more as it takes until at most `most` pushes are
  /// left. The first error ends it, and names the step of its push.
  Status reduceTo(uint64_t most);
  /// Waits for all, whatever they say: no memory of a push is referenced afterwards.
  void abandon();

 private:
  Error explain(const PushInFlight& push, const Error& refusal) const;

  Model& model_;  // whose arrays the gradients are
  std::function<void(const PushInfo&)> whenAnswered_;
  std::deque<PushInFlight> pushes_;
};

/// "step 5 (epoch 2): …"
Error atStep(uint64_t step, uint64_t epoch, const Error& error);

}  // namespace psd

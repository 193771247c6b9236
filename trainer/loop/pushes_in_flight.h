#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>

#include "common/status/status.h"
#include "trainer/client/api/client.h"
#include "trainer/model/model.h"

namespace psd {

/// A push that was started.
struct PushInFlight {
  uint64_t step = 0;
  uint64_t epoch = 0;
  double loss = 0;
  std::span<const float> gradient;       ///< must not change until the answer is taken
  std::shared_ptr<const RowBatch> rows;  ///< likewise; null: the model has no tables
  Pending<PushInfo> answer;
};

/// The pushes of a trainer whose answers have not been taken, oldest first. Owned by one thread.
class PushesInFlight {
 public:
  /// `whenAnswered` receives the answer to each accepted push, in step order.
  PushesInFlight(Model& model, std::function<void(const PushInfo&)> whenAnswered)
      : model_(model), whenAnswered_(std::move(whenAnswered)) {}

  void add(PushInFlight push) { pushes_.push_back(std::move(push)); }
  uint64_t count() const { return pushes_.size(); }

  /// Takes the answers that have arrived and waits for more until at most `most` pushes are left. The first
  /// error ends it and names the step of the push.
  Status reduceTo(uint64_t most);
  /// Waits for all pushes and ignores their results; afterwards no memory of a push is referenced.
  void abandon();

 private:
  Error explain(const PushInFlight& push, const Error& refusal) const;

  Model& model_;  // owns the gradient arrays
  std::function<void(const PushInfo&)> whenAnswered_;
  std::deque<PushInFlight> pushes_;
};

/// "step 5 (epoch 2): …"
Error atStep(uint64_t step, uint64_t epoch, const Error& error);

}  // namespace psd

#pragma once

#include <kj/async.h>

#include "common/types/ids.h"

namespace psd {

/// The sample assigner, notified of the outcome of each step. Thread-safe; outlives the event loops.
class StepOutcomes {
 public:
  virtual ~StepOutcomes() = default;
  /// Whether samples are assigned; otherwise outcomes need not be reported.
  virtual bool wanted() const = 0;
  /// The outcome of a step's gradient from a trainer process: applied, to at least some shards, or dropped.
  virtual kj::Promise<void> tell(ProcessId process, Step step, bool applied) = 0;
};

}  // namespace psd

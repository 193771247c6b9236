#pragma once

#include <kj/async.h>

#include "common/types/ids.h"

namespace psd {

/// Who deals samples and is told what became of them. Thread-safe; outlives the event loops.
class StepOutcomes {
 public:
  virtual ~StepOutcomes() = default;
  /// Whether samples are dealt at all: else nothing need be told.
  virtual bool wanted() const = 0;
  /// The gradient of a step of a trainer's process is over: applied, to some shards at least, or dropped.
  virtual kj::Promise<void> tell(ProcessId process, Step step, bool applied) = 0;
};

}  // namespace psd

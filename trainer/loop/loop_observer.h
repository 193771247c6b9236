#pragma once

#include <cstdint>
#include <optional>

namespace psd {

/// One finished step of one trainer. A value type.
struct StepReport {
  uint64_t step = 0;   ///< from 1
  uint64_t epoch = 0;  ///< from 1
  uint64_t totalSteps = 0;
  uint64_t totalEpochs = 0;  ///< the last one may be cut short by --steps
  bool endsEpoch = false;
  uint32_t samples = 0;        ///< in the batch
  bool autoBatch = false;      ///< the daemon chose how many
  double loss = 0;             ///< mean over the batch
  std::optional<double> rate;  ///< of a step that the trainer takes by itself
  uint64_t staleness = 0;      ///< PushInfo::staleness of the newest push that was answered
  uint64_t late = 0;           ///< gradients so far that were dropped because their round was closed
  uint64_t stale = 0;          ///< and because they were too old
  uint64_t inflight = 0;       ///< pushes not answered at the step's end
  uint64_t pushBytes = 0;      ///< PushInfo::bytes of the newest push that was answered
  uint64_t gradientBytes = 0;  ///< of the gradient as float32, rows included
  uint64_t rows = 0;           ///< of embedding tables in the step, each once
  uint64_t knownRows = 0;      ///< of these, touched by some push before
  double pullSeconds = 0;      ///< waited for parameters
  double computeSeconds = 0;   ///< batch, loss and gradients
  double pushSeconds = 0;      ///< waited for answers to pushes

  double seconds() const { return pullSeconds + computeSeconds + pushSeconds; }
};

/// Watches a training loop. Called on the loop's thread.
class LoopObserver {
 public:
  virtual ~LoopObserver() = default;
  virtual void onStep(const StepReport& report) = 0;
};

}  // namespace psd

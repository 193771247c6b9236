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
  uint32_t samples = 0;                    ///< in the batch
  uint64_t sourceBytes = 0;                ///< of the files from which these were read; 0: not known
  bool autoBatch = false;                  ///< the daemon chose the number of samples
  double loss = 0;                         ///< mean over the batch
  std::optional<double> rate;              ///< learning rate of a local step
  uint64_t staleness = 0;                  ///< PushInfo::staleness of the newest answered push
  uint64_t late = 0;                       ///< gradients dropped so far because their round was closed
  uint64_t stale = 0;                      ///< gradients dropped so far because they were too stale
  uint64_t inflight = 0;                   ///< unanswered pushes at the end of the step
  uint64_t pushBytes = 0;                  ///< PushInfo::bytes of the newest answered push
  uint64_t pullBytes = 0;                  ///< PullInfo::bytes of the step's pull
  uint64_t gradientBytes = 0;              ///< size of the gradient as float32, rows included
  uint64_t rows = 0;                       ///< distinct rows of embedding tables in the step
  uint64_t knownRows = 0;                  ///< of these, rows that a previous push has updated
  std::optional<uint64_t> nonZeroWeights;  ///< among the values of these rows, if the model counts them
  double pullSeconds = 0;                  ///< time waiting for parameters
  double computeSeconds = 0;               ///< time for batch, loss and gradients
  double pushSeconds = 0;                  ///< time waiting for answers to pushes

  double seconds() const { return pullSeconds + computeSeconds + pushSeconds; }
};

/// Observes a training loop. Called on the loop's thread.
class LoopObserver {
 public:
  virtual ~LoopObserver() = default;
  virtual void onStep(const StepReport& report) = 0;
};

}  // namespace psd

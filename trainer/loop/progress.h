#pragma once

#include <cstdint>
#include <functional>
#include <ostream>
#include <string>

#include "common/types/ids.h"
#include "trainer/loop/loop_observer.h"
#include "trainer/loop/training_loop.h"

namespace psd {

/// What a progress line shows beside the step itself. A value type.
struct Pace {
  double loss = 0;  ///< smoothed
  double samplesPerSecond = 0;
  double secondsLeft = 0;
};

/// "rank 0  epoch 1/2  step 120/126  loss 0.1234  1520 samples/s  staleness 1  ETA 0:12"; with "batch 53"
/// after the step where the daemon chooses that.
std::string formatProgress(Rank rank, const StepReport& report, const Pace& pace);
/// "0:07", "12:30" or "1:02:03"; rounded to whole seconds.
std::string formatDuration(double seconds);
/// The closing line of one trainer.
std::string formatSummary(Rank rank, const TrainingSummary& summary);

/// Shows how training goes: on a terminal one live line, refreshed ten times a second; elsewhere a line
/// about every two seconds and at the end of each epoch. Owned by one thread.
class Progress : public LoopObserver {
 public:
  /// A monotonic clock in seconds; tests bring their own.
  using Clock = std::function<double()>;

  Progress(std::ostream& out, bool terminal, Rank rank, Clock clock = steadySeconds);
  ~Progress() override;
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void onStep(const StepReport& report) override;
  /// Leaves the live line standing and goes to the next; nothing if there is none.
  void finish();

  static double steadySeconds();

 private:
  /// Where a rate is measured from.
  struct Mark {
    double time = 0;
    uint64_t steps = 0;
    uint64_t samples = 0;
  };
  Pace paceAt(const Mark& now, const StepReport& report);
  void show(const std::string& line);

  std::ostream& out_;
  bool terminal_;
  Rank rank_;
  Clock clock_;
  double lastShown_;
  Mark older_, newer_;  ///< the rate is taken since `older_`, two to four seconds ago
  uint64_t steps_ = 0;
  uint64_t samples_ = 0;
  double loss_ = 0;  ///< exponential moving average
  bool lineOpen_ = false;
};

}  // namespace psd

#pragma once

#include <cstdint>
#include <functional>
#include <ostream>
#include <string>

#include "common/types/ids.h"
#include "trainer/dataset/dataset.h"
#include "trainer/loop/loop_observer.h"
#include "trainer/loop/training_loop.h"

namespace psd {

/// Values of a progress line that do not come from the step report. A value type.
struct Pace {
  double loss = 0;  ///< smoothed
  double samplesPerSecond = 0;
  double secondsLeft = 0;
  uint64_t sourceBytes = 0;  ///< read so far; 0: not known
};

/// "rank 0 epoch 1/2 step 120/126 loss 0.1234 1520 samples/s staleness 1 ETA 0:12"; with "batch 53" after the
/// step if the daemon chooses the batch size, and "read 1.2 GiB" after the rate if it is known.
std::string formatProgress(Rank rank, const StepReport& report, const Pace& pace);
/// "checking the data: 1.2 GiB of 4.5 GiB  310.0 MiB/s  ETA 0:11", or at the end "checked the data: 4.5 GiB
/// in 15.2 s".
std::string formatReading(const ReadProgress& progress);
/// "0:07", "12:30" or "1:02:03"; rounded to whole seconds.
std::string formatDuration(double seconds);
/// The last line of output of a trainer.
std::string formatSummary(Rank rank, const TrainingSummary& summary);

/// Shows progress: on a terminal one live line, refreshed ten times a second; elsewhere a line about every
/// two seconds and at the end of each epoch. Owned by one thread.
class Progress : public LoopObserver {
 public:
  /// A monotonic clock in seconds; replaceable in tests.
  using Clock = std::function<double()>;

  Progress(std::ostream& out, bool terminal, Rank rank, Clock clock = steadySeconds);
  ~Progress() override;
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void onStep(const StepReport& report) override;
  /// Ends the live line with a newline; no effect if there is none.
  void finish();

  static double steadySeconds();

 private:
  /// A starting point for measuring rates.
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
  Mark older_, newer_;  ///< rates are measured since `older_`, two to four seconds ago
  uint64_t steps_ = 0;
  uint64_t samples_ = 0;
  uint64_t sourceBytes_ = 0;
  double loss_ = 0;  ///< exponential moving average
  bool lineOpen_ = false;
};

}  // namespace psd

#pragma once

#include <memory>
#include <string>
#include <utility>

#include "common/status/status.h"
#include "common/types/ids.h"
#include "trainer/loop/json_lines.h"
#include "trainer/loop/loop_observer.h"

namespace psd {

/// Writes one JSON object per step: time (Unix seconds), rank, run (one value per writer), and from
/// StepReport step, epoch, loss (null when not finite), batch (number of samples), samples_per_s, staleness,
/// late, stale, inflight, rows, known_rows, pull_s, compute_s, push_s, push_bytes and pull_bytes (on the
/// wire) and compression (float32 bytes of the gradient / push_bytes; 0 before the first answer). Owned by
/// one thread.
class MetricsWriter : public LoopObserver {
 public:
  /// Errors name the file and the reason.
  static Result<std::unique_ptr<MetricsWriter>> create(const std::string& path);

  /// Sets the rank of all lines; before the first step.
  void setRank(Rank rank) { rank_ = rank; }
  void onStep(const StepReport& report) override;
  /// Closes the file; an error if a line could not be written.
  Status finish() { return lines_->finish(); }

 private:
  explicit MetricsWriter(std::unique_ptr<JsonLines> lines);
  std::unique_ptr<JsonLines> lines_;
  Rank rank_;
  const std::string run_;
};

}  // namespace psd

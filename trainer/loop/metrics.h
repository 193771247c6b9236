#pragma once

#include <fstream>
#include <memory>
#include <string>

#include "common/status/status.h"
#include "trainer/loop/loop_observer.h"

namespace psd {

/// Writes one JSON object per step and line, of StepReport's fields: step, epoch, loss (null when not
/// finite), batch (its samples), samples_per_s, staleness, late, stale, inflight, pull_s, compute_s, push_s,
/// push_bytes (on the wire) and compression (the gradient's bytes as float32 by those; 0 before the first
/// answer). Each line reaches the file at once, so that it can be followed. Owned by one thread.
class MetricsWriter : public LoopObserver {
 public:
  /// Adds to the file what a trainer that goes on in another's place has to say. Errors name it and the
  /// reason.
  static Result<std::unique_ptr<MetricsWriter>> create(const std::string& path);

  void onStep(const StepReport& report) override;
  /// Whether every line was written.
  Status finish();

 private:
  explicit MetricsWriter(std::string path);
  std::string path_;
  std::ofstream file_;
};

}  // namespace psd

#pragma once

#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/status/status.h"
#include "trainer/loop/loop_observer.h"

namespace psd {

/// Writes an event file for TensorBoard: per step train/loss, train/samples_per_s, psd/staleness and
/// psd/pull_s. Records are TFRecords of hand-encoded protobuf messages. Owned by one thread.
class TensorboardWriter : public LoopObserver {
 public:
  /// Creates `folder` and a file in it with a name unique to this process. Errors name the path and the
  /// reason.
  static Result<std::unique_ptr<TensorboardWriter>> create(const std::string& folder);
  /// Checks that create() could write to `folder`, which is created if missing.
  static Status checkFolder(const std::string& folder);

  void onStep(const StepReport& report) override;
  using Scalar = std::pair<std::string_view, double>;  ///< tag and value
  void add(uint64_t step, const std::vector<Scalar>& scalars);
  /// Closes the file; an error if an event could not be written.
  Status finish();

 private:
  explicit TensorboardWriter(std::string path);
  void record(const std::string& event);

  const std::string path_;
  std::ofstream file_;
  double flushed_ = 0;  // time of the last flush
};

}  // namespace psd

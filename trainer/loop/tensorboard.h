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

/// Writes a file of events that TensorBoard shows: with each step train/loss, train/samples_per_s,
/// psd/staleness and psd/pull_s. Records are TFRecords of protobuf messages, written by hand. Owned by one
/// thread.
class TensorboardWriter : public LoopObserver {
 public:
  /// Makes `folder` and a file in it that no other process writes. Errors name the path and the reason.
  static Result<std::unique_ptr<TensorboardWriter>> create(const std::string& folder);
  /// Whether create() could make files in `folder`, which is made where it is missing.
  static Status checkFolder(const std::string& folder);

  void onStep(const StepReport& report) override;
  using Scalar = std::pair<std::string_view, double>;  ///< tag and value
  void add(uint64_t step, const std::vector<Scalar>& scalars);
  /// Whether everything was written.
  Status finish();

 private:
  explicit TensorboardWriter(std::string path);
  void record(const std::string& event);

  const std::string path_;
  std::ofstream file_;
  double flushed_ = 0;  // when
};

}  // namespace psd

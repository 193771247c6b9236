#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace psd {

/// A pipeline with one thread per stage, through which the micro-batches of passes go: forward from the first
/// stage to the last, backward in reverse. A stage prefers backward work, so that with several passes in
/// flight it alternates between forward and backward; otherwise in order of arrival. Thread-safe.
class StagePipeline {
 public:
  enum class Direction { forward, backward };
  /// Processes a micro-batch at a stage; called on the stage's thread.
  using Work = std::function<void(size_t stage, size_t microBatch)>;

  /// `onStart` is called on each thread. Throws std::system_error if a thread cannot be started.
  StagePipeline(size_t stages, const std::function<void()>& onStart);
  /// Requires that no run() is in progress.
  ~StagePipeline();

  size_t stages() const { return stages_.size(); }
  /// Number of parts that wait for a stage.
  size_t waiting() const;
  /// Runs all micro-batches through all stages and waits for them. An exception of a part is rethrown here
  /// once no part is running; parts that have not started are skipped.
  void run(Direction direction, size_t microBatches, const Work& work);

 private:
  /// A call of run(); owned by its waiting caller.
  struct Run {
    const Direction direction;
    const Work& work;
    size_t left;  ///< unfinished micro-batches
    std::exception_ptr failed;
  };
  struct Part {
    Run* run = nullptr;
    size_t microBatch = 0;
  };
  struct Stage {
    std::deque<Part> forward, backward;
    std::thread thread;
  };

  void serve(size_t stage);
  void add(size_t stage, Part part);
  /// Passes the part to the next stage, or counts it as finished.
  void advance(size_t stage, Part part);
  void end();

  mutable std::mutex mutex_;  // guards the members below, except the threads
  std::condition_variable changed_;
  bool stopped_ = false;
  std::vector<Stage> stages_;
};

}  // namespace psd

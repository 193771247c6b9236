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

/// Threads through which the micro-batches of passes go, one for each stage: forward from the first to the
/// last, backward the other way. A stage does what belongs to a backward pass first, so that where several
/// passes are under way it does one forward and one backward in turn; then in the order of arrival.
/// Thread-safe.
class StagePipeline {
 public:
  enum class Way { forward, backward };
  /// Does a micro-batch's part at a stage; on that stage's thread.
  using Work = std::function<void(size_t stage, size_t microBatch)>;

  /// `onStart` is called on each thread. Throws std::system_error where the system gives none.
  StagePipeline(size_t stages, const std::function<void()>& onStart);
  /// No run() is under way.
  ~StagePipeline();

  size_t stages() const { return stages_.size(); }
  /// Parts that wait for a stage.
  size_t waiting() const;
  /// Takes all micro-batches through all stages, and returns when they are through. What a part throws is
  /// thrown here, once no part is under way any more; those that have not begun are left out.
  void run(Way way, size_t microBatches, const Work& work);

 private:
  /// One call of run(). Its caller waits, and owns it.
  struct Run {
    const Way way;
    const Work& work;
    size_t left;  ///< micro-batches that are not through
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
  /// Sends it to the stage that follows, or counts it as through.
  void passOn(size_t stage, Part part);
  void end();

  mutable std::mutex mutex_;  // guards what follows, but for the threads
  std::condition_variable changed_;
  bool stopped_ = false;
  std::vector<Stage> stages_;
};

}  // namespace psd

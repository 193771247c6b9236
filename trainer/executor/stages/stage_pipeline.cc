#include "trainer/executor/stages/stage_pipeline.h"

#include <csignal>

#include <pthread.h>

namespace psd {

StagePipeline::StagePipeline(size_t stages, const std::function<void()>& onStart) : stages_(stages) {
  // The new threads inherit a mask that blocks all signals.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    for (size_t stage = 0; stage < stages; stage++) {
      stages_[stage].thread = std::thread([this, stage, onStart] {
        onStart();
        serve(stage);
      });
    }
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    end();
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

StagePipeline::~StagePipeline() { end(); }

void StagePipeline::end() {
  {
    const std::lock_guard hold(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
  for (Stage& stage : stages_) {
    if (stage.thread.joinable()) stage.thread.join();
  }
}

size_t StagePipeline::waiting() const {
  const std::lock_guard hold(mutex_);
  size_t waiting = 0;
  for (const Stage& stage : stages_) waiting += stage.forward.size() + stage.backward.size();
  return waiting;
}

void StagePipeline::run(Direction direction, size_t microBatches, const Work& work) {
  Run run{direction, work, microBatches, nullptr};
  std::unique_lock hold(mutex_);
  const size_t first = direction == Direction::forward ? 0 : stages_.size() - 1;
  for (size_t i = 0; i < microBatches; i++) add(first, {&run, i});
  changed_.notify_all();
  changed_.wait(hold, [&run] { return run.left == 0; });
  if (run.failed) std::rethrow_exception(run.failed);
}

void StagePipeline::add(size_t stage, Part part) {
  Stage& to = stages_[stage];
  (part.run->direction == Direction::forward ? to.forward : to.backward).push_back(part);
}

void StagePipeline::serve(size_t stage) {
  std::unique_lock hold(mutex_);
  Stage& own = stages_[stage];
  for (;;) {
    changed_.wait(hold, [&] { return stopped_ || !own.forward.empty() || !own.backward.empty(); });
    if (stopped_) return;
    std::deque<Part>& next = own.backward.empty() ? own.forward : own.backward;
    const Part part = next.front();
    next.pop_front();
    if (!part.run->failed) {
      hold.unlock();
      std::exception_ptr failed;
      try {
        part.run->work(stage, part.microBatch);
      } catch (...) {
        failed = std::current_exception();
      }
      hold.lock();
      if (failed && !part.run->failed) part.run->failed = failed;
    }
    advance(stage, part);
    changed_.notify_all();
  }
}

void StagePipeline::advance(size_t stage, Part part) {
  const bool forward = part.run->direction == Direction::forward;
  const bool last = stage == (forward ? stages_.size() - 1 : 0);
  if (last || part.run->failed) {
    part.run->left--;
  } else {
    add(forward ? stage + 1 : stage - 1, part);
  }
}

}  // namespace psd

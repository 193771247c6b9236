#include "test/cuda/emulated/stream.h"

#include <utility>

namespace psd::emulated {
namespace {

thread_local bool driverThread = false;

}  // namespace

Stream::Stream(Device& device) : device_(device), thread_([this] { run(); }) {}

Stream::~Stream() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Stream::queue(std::function<void()> work) { queue({std::move(work), true}); }

void Stream::queueOnHost(std::function<void()> work) { queue({std::move(work), false}); }

void Stream::queue(Work work) {
  {
    const std::lock_guard lock(mutex_);
    queued_.push_back(std::move(work));
  }
  changed_.notify_all();
}

void Stream::synchronize() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return queued_.empty() && !busy_; });
}

bool Stream::idle() const {
  const std::lock_guard lock(mutex_);
  return queued_.empty() && !busy_;
}

bool Stream::onDriverThread() { return driverThread; }

void Stream::run() {
  driverThread = true;
  bool atWork = false;
  const auto setAtWork = [&](bool wanted) {
    if (wanted == atWork) return;
    for (Memory* const memory : {&device_.memory, &device_.opened}) {
      wanted ? memory->beginWork() : memory->endWork();
    }
    atWork = wanted;
  };
  std::unique_lock lock(mutex_);
  for (;;) {
    if (queued_.empty()) {
      setAtWork(false);
      busy_ = false;
      changed_.notify_all();
      changed_.wait(lock, [this] { return ends_ || !queued_.empty(); });
      if (queued_.empty()) return;
    }
    busy_ = true;
    {
      const Work work = std::move(queued_.front());
      queued_.pop_front();
      lock.unlock();
      setAtWork(work.onDevice);
      if (!work.onDevice || !device_.failed) work.run();
    }
    lock.lock();
  }
}

}  // namespace psd::emulated

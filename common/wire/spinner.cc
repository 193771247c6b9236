#include "common/wire/spinner.h"

#include <sched.h>

namespace psd::wire {

void Spinner::touch() {
  if (time_ == time_.zero()) return;
  until_ = std::chrono::steady_clock::now() + time_;
  if (spinning_) return;
  spinning_ = true;
  task_ = spin().eagerlyEvaluate(nullptr);
}

void Spinner::stop() {
  time_ = time_.zero();
  task_ = nullptr;
}

kj::Promise<void> Spinner::spin() {
  // Runs after all other work of the loop.
  return kj::evalLast([this]() -> kj::Promise<void> {
    if (std::chrono::steady_clock::now() >= until_) {
      spinning_ = false;
      return kj::READY_NOW;
    }
    sched_yield();
    if (port_.poll()) {
      // Another thread has work for this loop, which the loop finds only when it goes to sleep.
      port_.wake();
      spinning_ = false;
      return kj::READY_NOW;
    }
    return spin();
  });
}

}  // namespace psd::wire

#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "trainer/client/client.h"
#include "trainer/client/transport/daemon_connection.h"
#include "trainer/client/transport/shared_model.h"

namespace psd {

/// A pull out of the daemon's memory, which every thread that has nothing else to do helps with: each copies
/// one piece after another that nobody has taken. Thread-safe. Nobody writes to the destination once done(),
/// nor, after stop(), once those who copy a piece have copied it.
class SharedCopy {
 public:
  SharedCopy(std::shared_ptr<const SharedModel> model, std::span<float> destination)
      : model_(std::move(model)),
        destination_(destination),
        began_(std::chrono::steady_clock::now()),
        // Before the values: updates that land in between make them newer than this says, never older.
        versions_(model_->versions()) {}

  /// False: all pieces are taken.
  bool copyPiece() {
    const uint64_t begin = next_.fetch_add(kPieceElements, std::memory_order_relaxed);
    if (begin >= destination_.size()) return false;
    const uint64_t count = std::min<uint64_t>(kPieceElements, destination_.size() - begin);
    model_->copy(begin, destination_.subspan(begin, count), destination_.size());
    copied_.fetch_add(count, std::memory_order_release);
    return true;
  }
  /// Has no more pieces taken: the copy will not be done.
  void stop() { next_.store(destination_.size(), std::memory_order_relaxed); }
  bool done() const { return copied_.load(std::memory_order_acquire) == destination_.size(); }

  /// What a copy that is done has pulled.
  PullInfo info() const {
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - began_;
    return {versions_, taken.count(), destination_.size_bytes()};
  }

 private:
  static constexpr uint64_t kPieceElements = (512u << 10) / sizeof(float);

  const std::shared_ptr<const SharedModel> model_;
  const std::span<float> destination_;
  const std::chrono::steady_clock::time_point began_;
  const std::vector<Version> versions_;
  std::atomic<uint64_t> next_{0}, copied_{0};  // elements
};

/// Helps with a copy on the connection's event loop, while the connection stands, until it is done.
kj::Promise<Result<PullInfo>> copyOnLoop(std::shared_ptr<SharedCopy> copy, DaemonConnection& connection);

}  // namespace psd

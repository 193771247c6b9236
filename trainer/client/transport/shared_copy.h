#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "trainer/client/api/client.h"
#include "trainer/client/transport/daemon_connection.h"
#include "trainer/client/transport/shared_model.h"

namespace psd {

/// A pull from the daemon's memory, in which all otherwise idle threads share: each copies pieces that no
/// other thread has taken. Thread-safe. No thread writes to the destination after done(), or after stop()
/// once the pieces being copied are complete.
class SharedCopy {
 public:
  SharedCopy(std::shared_ptr<const SharedModel> model, std::span<float> destination)
      : model_(std::move(model)),
        destination_(destination),
        began_(std::chrono::steady_clock::now()),
        // Read before the values: concurrent updates make the values newer than this, never older.
        versions_(model_->versions()) {}

  /// Copies one piece; false if all pieces are taken.
  bool copyPiece() {
    const uint64_t begin = next_.fetch_add(kPieceElements, std::memory_order_relaxed);
    if (begin >= destination_.size()) return false;
    const uint64_t count = std::min<uint64_t>(kPieceElements, destination_.size() - begin);
    model_->copy(begin, destination_.subspan(begin, count), destination_.size());
    copied_.fetch_add(count, std::memory_order_release);
    return true;
  }
  /// No more pieces are taken: the copy will not complete.
  void stop() { next_.store(destination_.size(), std::memory_order_relaxed); }
  bool done() const { return copied_.load(std::memory_order_acquire) == destination_.size(); }

  /// Result of a complete copy.
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

/// Helps with a copy on the connection's event loop until it is done or the connection ends.
kj::Promise<Result<PullInfo>> copyOnLoop(std::shared_ptr<SharedCopy> copy, DaemonConnection& connection);

}  // namespace psd

#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

namespace psd {

/// Decides when the next checkpoint is due. Pure: the caller passes in progress and the time, in seconds from
/// an arbitrary origin. Not thread-safe; the owner synchronizes access.
class CheckpointSchedule {
 public:
  /// Default of `everyBytes`: kLogOfCheckpoints times the size of the newest checkpoint, at least
  /// kLogBytesMin, so that checkpoints are a small part of all bytes written.
  static constexpr uint64_t kLogOfCheckpoints = 8, kLogBytesMin = 256ull << 20;

  struct Terms {
    double everySeconds = 0;    ///< 0: disabled
    uint64_t everyUpdates = 0;  ///< 0: disabled
    std::optional<uint64_t> everyBytes =
        0;  ///< of the log; 0: disabled; nullopt: derived from the checkpoint size
  };
  /// Progress of the run. A value type.
  struct Progress {
    uint64_t updates = 0;
    uint64_t logged = 0;  ///< bytes of the log
  };

  explicit CheckpointSchedule(Terms terms) : terms_(terms) {}

  /// Replaces the terms.
  void follow(Terms terms) { terms_ = terms; }
  /// Starts counting: the current values are saved already, or new. `logged`: bytes of the log that no
  /// checkpoint covers.
  void start(double now, Progress progress) { succeeded(now, progress, 0); }

  /// True if a checkpoint is due. Without updates since the last one there is nothing to save; a failed
  /// checkpoint is retried in any case, because a log may wait for it.
  bool due(double now, Progress progress) const {
    if (failures_ > 0) return now >= retryAt_;
    if (progress.updates == saved_.updates) return false;
    const bool byTime = terms_.everySeconds > 0 && now >= savedAt_ + terms_.everySeconds;
    const bool byUpdates =
        terms_.everyUpdates > 0 && progress.updates >= saved_.updates + terms_.everyUpdates;
    const uint64_t bytes =
        terms_.everyBytes.value_or(std::max(kLogBytesMin, kLogOfCheckpoints * checkpointBytes_));
    const bool byBytes = bytes > 0 && progress.logged >= saved_.logged + bytes;
    return byTime || byUpdates || byBytes;
  }

  /// A checkpoint of `bytes` bytes, covering everything up to `progress`, succeeded.
  void succeeded(double now, Progress progress, uint64_t bytes) {
    savedAt_ = now;
    saved_ = progress;
    checkpointBytes_ = bytes;
    failures_ = 0;
  }
  /// Schedules the retry after 1, 2, 4, … seconds, at most one minute.
  void failed(double now) {
    retryAt_ = now + static_cast<double>(std::min<uint64_t>(1ull << std::min<uint64_t>(failures_, 6), 60));
    failures_++;
  }
  /// Consecutive failures.
  uint64_t failures() const { return failures_; }
  bool unsaved(uint64_t updates) const { return updates != saved_.updates; }

 private:
  Terms terms_;
  double savedAt_ = 0;
  Progress saved_;
  uint64_t checkpointBytes_ = 0;
  double retryAt_ = 0;
  uint64_t failures_ = 0;
};

}  // namespace psd

#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <cuda_runtime.h>

#include "common/status/status.h"
#include "server/store/rows/cuda/row_groups.h"

namespace psd {

/// A stream of a device and memory for what goes through it: buffers that are pinned, and as many in the
/// device's memory. All of it is taken when it is made, so that no call finds none. Used by one thread at a
/// time.
class RowStream {
 public:
  static constexpr uint64_t kBufferBytes = uint64_t{1} << 20;
  static constexpr uint32_t kBuffers = 3;  ///< what goes in, what is at work, and what goes out

  /// Pinned memory of the host and as much of the device's, each a copy of the other once a transfer has
  /// ended.
  struct Buffer {
    std::byte* host = nullptr;
    std::byte* device = nullptr;
  };

  /// ErrorCode::overloaded, naming the bytes, where device or system have no room.
  static Result<std::unique_ptr<RowStream>> make(int device);
  ~RowStream();
  RowStream(const RowStream&) = delete;
  RowStream& operator=(const RowStream&) = delete;

  cudaStream_t stream() const { return stream_; }
  RowGroups& groups() { return groups_; }

  /// Goes through `count` things, at most `most` at a time: `queue(at, some, buffer)` fills a buffer and
  /// queues the work, and `finish(at, some, buffer)` is called when that has ended, while the next is at
  /// work. All has ended when this returns.
  template <class Queue, class Finish>
  Status run(uint64_t count, uint64_t most, const Queue& queue, const Finish& finish);
  /// run() of work that leaves the host nothing to do at its end.
  template <class Queue>
  Status run(uint64_t count, uint64_t most, const Queue& queue) {
    return run(count, most, queue, [](uint64_t, uint64_t, const Buffer&) {});
  }

  /// Queues the copy of `bytes` of a buffer, from `at` of it on.
  Status copyIn(const Buffer& buffer, uint64_t at, uint64_t bytes);
  Status copyOut(const Buffer& buffer, uint64_t at, uint64_t bytes);

 private:
  explicit RowStream(int device) : device_(device) {}
  Status setUp();
  Status mark(uint32_t buffer);
  Status await(uint32_t buffer);
  Status awaitAll();

  const int device_;
  cudaStream_t stream_ = nullptr;
  void* pinned_ = nullptr;
  void* onDevice_ = nullptr;
  std::array<Buffer, kBuffers> buffers_;
  std::array<cudaEvent_t, kBuffers> ended_{};  // the work on each buffer
  RowGroups groups_;
};

/// The streams of a device for calls of row storages: lent to one call after the other, and made until there
/// are as many as calls at a time. Thread-safe.
class RowStreams {
 public:
  static constexpr size_t kStreamsMax = 16;  ///< a call beyond waits for another one

  explicit RowStreams(int device) : device_(device) {}

  /// Sees to it that there is one. ErrorCode::overloaded, naming the bytes.
  Status prepare();

  /// Calls `work(stream)`, the device being current, with a stream that nobody else uses, and keeps its
  /// error. Does nothing once there is one: a device that fails fails for good. After prepare().
  template <class Work>
  void use(const Work& work) {
    if (failed_.load(std::memory_order_acquire)) return;
    const Lent lent(*this);
    const auto begun = [&]() -> Status {
      PSD_RETURN_IF_ERROR(setDevice());
      return work(*lent.stream);
    };
    if (const Status status = begun(); !status.ok()) keep(status.error());
  }
  /// Ok, or the first error.
  Status state() const;

 private:
  struct Lent {
    explicit Lent(RowStreams& from) : of(from), stream(from.take()) {}
    ~Lent() { of.giveBack(stream); }
    Lent(const Lent&) = delete;
    Lent& operator=(const Lent&) = delete;

    RowStreams& of;
    RowStream* const stream;
  };

  Status setDevice() const;
  RowStream* take();
  void giveBack(RowStream* stream);
  void keep(const Error& error);

  const int device_;
  mutable std::mutex mutex_;  // guards all below but failed_
  std::condition_variable returned_;
  std::vector<std::unique_ptr<RowStream>> streams_;
  std::vector<RowStream*> idle_;
  size_t making_ = 0;
  std::optional<Error> error_;
  std::atomic<bool> failed_ = false;
};

template <class Queue, class Finish>
Status RowStream::run(uint64_t count, uint64_t most, const Queue& queue, const Finish& finish) {
  const uint64_t pieces = (count + most - 1) / most;
  const auto sizeOf = [&](uint64_t piece) { return std::min(most, count - piece * most); };
  const auto step = [&](uint64_t turn) -> Status {
    const auto number = static_cast<uint32_t>(turn % kBuffers);
    if (turn >= kBuffers && turn - kBuffers < pieces) {
      PSD_RETURN_IF_ERROR(await(number));
      const uint64_t piece = turn - kBuffers;
      finish(piece * most, sizeOf(piece), buffers_[number]);
    }
    if (turn >= pieces) return {};
    PSD_RETURN_IF_ERROR(queue(turn * most, sizeOf(turn), buffers_[number]));
    return mark(number);
  };
  const auto all = [&]() -> Status {
    for (uint64_t turn = 0; turn < pieces + kBuffers; ++turn) PSD_RETURN_IF_ERROR(step(turn));
    return {};
  };
  Status status = all();
  if (!status.ok()) static_cast<void>(awaitAll());  // nothing may be at work on the buffers
  return status;
}

}  // namespace psd

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

/// A stream of a device with pinned transfer buffers and as many buffers in device memory. All memory is
/// allocated at construction, so that calls cannot run out of it. Used by one thread at a time.
class RowStream {
 public:
  static constexpr uint64_t kBufferBytes = uint64_t{1} << 20;
  static constexpr uint32_t kBuffers = 3;  ///< one each for input, execution and output

  /// A pinned host buffer and its counterpart in device memory; a transfer makes them equal.
  struct Buffer {
    std::byte* host = nullptr;
    std::byte* device = nullptr;
  };

  /// ErrorCode::overloaded, naming the bytes, if the device or the system is out of memory.
  static Result<std::unique_ptr<RowStream>> make(int device);
  ~RowStream();
  RowStream(const RowStream&) = delete;
  RowStream& operator=(const RowStream&) = delete;

  cudaStream_t stream() const { return stream_; }
  RowGroups& groups() { return groups_; }

  /// Processes `count` items, at most `most` at a time: `queue(at, some, buffer)` fills a buffer and queues
  /// the work, and `finish(at, some, buffer)` is called once that has completed, while later pieces are in
  /// progress. All work has completed when this returns.
  template <class Queue, class Finish>
  Status run(uint64_t count, uint64_t most, const Queue& queue, const Finish& finish);
  /// run() without a finish step.
  template <class Queue>
  Status run(uint64_t count, uint64_t most, const Queue& queue) {
    return run(count, most, queue, [](uint64_t, uint64_t, const Buffer&) {});
  }

  /// Queues the copy of `bytes` bytes of a buffer, starting at `at`.
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
  std::array<cudaEvent_t, kBuffers> ended_{};  // completion of the work on each buffer
  RowGroups groups_;
};

/// A pool of streams of a device for calls of row storages; grows to the number of concurrent calls.
/// Thread-safe.
class RowStreams {
 public:
  static constexpr size_t kStreamsMax = 16;  ///< further calls wait for a stream

  explicit RowStreams(int device) : device_(device) {}

  /// Ensures that there is at least one stream. ErrorCode::overloaded, naming the bytes.
  Status prepare();

  /// Makes the device current, calls `work(stream)` with exclusive use of a stream, and records its error.
  /// Does nothing after the first error: a device failure is permanent. Requires prepare().
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
    ~Lent() { of.returnStream(stream); }
    Lent(const Lent&) = delete;
    Lent& operator=(const Lent&) = delete;

    RowStreams& of;
    RowStream* const stream;
  };

  Status setDevice() const;
  RowStream* take();
  void returnStream(RowStream* stream);
  void keep(const Error& error);

  const int device_;
  mutable std::mutex mutex_;  // guards all below except failed_
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
  if (!status.ok()) static_cast<void>(awaitAll());  // no work may still use the buffers
  return status;
}

}  // namespace psd

#include <string>
#include <utility>

#include "server/store/arena_plan.h"
#include "server/store/cuda/device.cuh"
#include "server/store/rows/cuda/row_streams.cuh"

namespace psd {

Result<std::unique_ptr<RowStream>> RowStream::make(int device) {
  std::unique_ptr<RowStream> stream(new RowStream(device));
  PSD_RETURN_IF_ERROR(stream->setUp());
  return std::move(stream);  // nvcc does not move into a Result implicitly
}

Status RowStream::setUp() {
  constexpr uint64_t kBytes = kBuffers * kBufferBytes;
  const auto taken = [this](const char* call, cudaError_t error) -> Status {
    if (error == cudaSuccess) return {};
    cudaGetLastError();  // clears the error, which the next kernel launch would report
    if (error != cudaErrorMemoryAllocation) return cudaStatus(device_, call, error);
    return notEnoughMemory(cudaDeviceName(device_), kBytes, std::string(call) + " failed");
  };
  PSD_RETURN_IF_ERROR(cudaStatus(device_, "cudaSetDevice", cudaSetDevice(device_)));
  PSD_RETURN_IF_ERROR(taken("cudaMalloc", cudaMalloc(&onDevice_, kBytes)));
  PSD_RETURN_IF_ERROR(taken("cudaHostAlloc", cudaHostAlloc(&pinned_, kBytes, cudaHostAllocPortable)));
  PSD_RETURN_IF_ERROR(
      cudaStatus(device_, "cudaStreamCreate", cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)));
  for (uint32_t i = 0; i < kBuffers; ++i) {
    buffers_[i] = {static_cast<std::byte*>(pinned_) + i * kBufferBytes,
                   static_cast<std::byte*>(onDevice_) + i * kBufferBytes};
    PSD_RETURN_IF_ERROR(
        cudaStatus(device_, "cudaEventCreate", cudaEventCreateWithFlags(&ended_[i], cudaEventDisableTiming)));
  }
  return {};
}

RowStream::~RowStream() {
  cudaSetDevice(device_);
  if (stream_ != nullptr) {
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }
  for (const cudaEvent_t event : ended_) {
    if (event != nullptr) cudaEventDestroy(event);
  }
  cudaFreeHost(pinned_);
  cudaFree(onDevice_);
}

Status RowStream::copyIn(const Buffer& buffer, uint64_t at, uint64_t bytes) {
  return cudaStatus(
      device_, "cudaMemcpyAsync",
      cudaMemcpyAsync(buffer.device + at, buffer.host + at, bytes, cudaMemcpyHostToDevice, stream_));
}

Status RowStream::copyOut(const Buffer& buffer, uint64_t at, uint64_t bytes) {
  return cudaStatus(
      device_, "cudaMemcpyAsync",
      cudaMemcpyAsync(buffer.host + at, buffer.device + at, bytes, cudaMemcpyDeviceToHost, stream_));
}

Status RowStream::mark(uint32_t buffer) {
  return cudaStatus(device_, "cudaEventRecord", cudaEventRecord(ended_[buffer], stream_));
}

Status RowStream::await(uint32_t buffer) {
  return cudaStatus(device_, "queued work", cudaEventSynchronize(ended_[buffer]));
}

Status RowStream::awaitAll() {
  return cudaStatus(device_, "cudaStreamSynchronize", cudaStreamSynchronize(stream_));
}

Status RowStreams::setDevice() const { return cudaStatus(device_, "cudaSetDevice", cudaSetDevice(device_)); }

Status RowStreams::prepare() {
  const std::lock_guard lock(mutex_);
  if (!streams_.empty()) return {};
  PSD_ASSIGN_OR_RETURN(auto stream, RowStream::make(device_));
  idle_.push_back(stream.get());
  streams_.push_back(std::move(stream));
  return {};
}

RowStream* RowStreams::take() {
  std::unique_lock lock(mutex_);
  if (idle_.empty() && streams_.size() + making_ < kStreamsMax) {
    ++making_;
    lock.unlock();
    auto made = RowStream::make(device_);
    lock.lock();
    --making_;
    if (made.ok()) {
      streams_.push_back(*std::move(made));
      return streams_.back().get();
    }
  }
  // At the limit, or without memory for another stream, the call waits for another call's stream.
  returned_.wait(lock, [this] { return !idle_.empty(); });
  RowStream* const stream = idle_.back();
  idle_.pop_back();
  return stream;
}

void RowStreams::returnStream(RowStream* stream) {
  {
    const std::lock_guard lock(mutex_);
    idle_.push_back(stream);
  }
  returned_.notify_one();
}

void RowStreams::keep(const Error& error) {
  const std::lock_guard lock(mutex_);
  if (error_) return;
  error_ = error;
  failed_.store(true, std::memory_order_release);
}

Status RowStreams::state() const {
  if (!failed_.load(std::memory_order_acquire)) return {};
  const std::lock_guard lock(mutex_);
  return *error_;
}

}  // namespace psd

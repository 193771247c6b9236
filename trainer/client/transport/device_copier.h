#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "common/status/status.h"

namespace psd {

/// Copies from and to the memory of one CUDA device, through the CUDA runtime that the program has: this
/// library is built without one and looks for its functions when it runs. Where CUDA fails the error is
/// ErrorCode::internal, as no other connection would be any better. Used by one thread at a time.
class DeviceCopier {
 public:
  /// Memory that another process shares, in this process's device; unmapped with it. The copier outlives it.
  class Mapping {
   public:
    Mapping(DeviceCopier& copier, std::byte* data) : copier_(copier), data_(data) {}
    ~Mapping();
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;
    std::byte* data() const { return data_; }

   private:
    DeviceCopier& copier_;
    std::byte* const data_;
  };

  /// Floats in the device's memory; freed with it. The copier outlives it.
  class Array {
   public:
    Array(DeviceCopier& copier, float* data, size_t count) : copier_(copier), data_(data), count_(count) {}
    ~Array();
    Array(const Array&) = delete;
    Array& operator=(const Array&) = delete;
    /// Not for the host to read.
    std::span<float> span() const { return {data_, count_}; }

   private:
    DeviceCopier& copier_;
    float* const data_;
    const size_t count_;
  };

  /// Fails where the program has no CUDA runtime, or that has no such device.
  static Result<std::unique_ptr<DeviceCopier>> make(int device);
  ~DeviceCopier();
  DeviceCopier(const DeviceCopier&) = delete;
  DeviceCopier& operator=(const DeviceCopier&) = delete;

  /// `handle`: a cudaIpcMemHandle_t of another process. Fails when the device cannot reach that memory;
  /// ErrorCode::protocolMismatch when it has another size.
  Result<std::unique_ptr<Mapping>> map(std::span<const std::byte> handle);
  /// An array of what `values`, of host memory, are.
  Result<std::unique_ptr<Array>> allocate(std::span<const float> values);
  /// Copies from one address to another, each in memory of the host or of a device, after what was begun
  /// before and what stream() waits for; returns when that is done.
  Status copy(void* to, const void* from, size_t bytes);
  /// Queues such a copy; it is done when synchronize() returns.
  Status begin(void* to, const void* from, size_t bytes);
  /// A cudaStream_t of this copier alone, for others to have it wait for work of theirs. Thread-safe.
  void* stream() const { return stream_; }
  /// Waits for all that was begun, and for what stream() waits for.
  Status synchronize();
  /// Whether synchronize() would return at once.
  Result<bool> idle();

 private:
  struct Runtime;

  DeviceCopier(int device, std::unique_ptr<Runtime> runtime);
  Status check(const char* call, int error) const;

  const int device_;
  const std::unique_ptr<Runtime> runtime_;
  void* stream_ = nullptr;  // a cudaStream_t
};

}  // namespace psd

#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "common/status/status.h"

namespace psd {

/// Copies to and from the memory of one CUDA device, with the CUDA runtime of the program: this library is
/// built without CUDA and resolves the functions at run time. CUDA failures are ErrorCode::internal, since a
/// reconnect would not help. A thread's current device stays as it is. Used by one thread at a time.
class DeviceCopier {
 public:
  /// Memory shared by another process, mapped in this process; the destructor unmaps it. The copier outlives
  /// it.
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

  /// Floats in the device's memory; freed by the destructor. The copier outlives it.
  class Array {
   public:
    Array(DeviceCopier& copier, float* data, size_t count) : copier_(copier), data_(data), count_(count) {}
    ~Array();
    Array(const Array&) = delete;
    Array& operator=(const Array&) = delete;
    /// Device pointers; the host must not dereference them.
    std::span<float> span() const { return {data_, count_}; }

   private:
    DeviceCopier& copier_;
    float* const data_;
    const size_t count_;
  };

  /// Fails if the program has no CUDA runtime, or the runtime has no such device.
  static Result<std::unique_ptr<DeviceCopier>> make(int device);
  ~DeviceCopier();
  DeviceCopier(const DeviceCopier&) = delete;
  DeviceCopier& operator=(const DeviceCopier&) = delete;

  /// `handle`: a cudaIpcMemHandle_t of another process. Fails if the device cannot access that memory;
  /// ErrorCode::protocolMismatch if the handle has another size.
  Result<std::unique_ptr<Mapping>> map(std::span<const std::byte> handle);
  /// An array with a copy of `values`, which are in host memory.
  Result<std::unique_ptr<Array>> allocate(std::span<const float> values);
  /// Copies from one address to another, each in host or device memory, after earlier begin() calls and all
  /// work that stream() waits for. Returns when the copy is complete.
  Status copy(void* to, const void* from, size_t bytes);
  /// Queues such a copy; it is complete when synchronize() returns.
  Status begin(void* to, const void* from, size_t bytes);
  /// A cudaStream_t used by this copier only; others may make it wait for their work. Thread-safe.
  void* stream() const { return stream_; }
  /// Waits for all queued copies, and for what stream() waits for.
  Status synchronize();
  /// Whether synchronize() would return immediately.
  Result<bool> idle();

 private:
  struct Runtime;
  class Current;

  DeviceCopier(int device, std::unique_ptr<Runtime> runtime);
  Status check(const char* call, int error) const;

  const int device_;
  const std::unique_ptr<Runtime> runtime_;
  void* stream_ = nullptr;  // a cudaStream_t
};

}  // namespace psd

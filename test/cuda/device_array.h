#pragma once

#include <span>
#include <vector>

#include <cuda_runtime.h>

#include "test/support/catch.h"

namespace psd::testing {

/// Floats in the memory of the current CUDA device, like a trainer's own arrays. Owned by one thread.
class DeviceArray {
 public:
  explicit DeviceArray(std::span<const float> values) : count_(values.size()) {
    void* data = nullptr;
    REQUIRE(cudaMalloc(&data, values.size_bytes()) == cudaSuccess);
    data_ = static_cast<float*>(data);
    set(values);
  }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  /// Device memory: not accessible to the host.
  std::span<float> span() const { return {data_, count_}; }
  void set(std::span<const float> values) const { copy(data_, values.data(), cudaMemcpyHostToDevice); }
  std::vector<float> values() const {
    std::vector<float> values(count_);
    copy(values.data(), data_, cudaMemcpyDeviceToHost);
    return values;
  }

 private:
  void copy(void* to, const void* from, cudaMemcpyKind kind) const {
    REQUIRE(cudaMemcpyAsync(to, from, count_ * sizeof(float), kind, nullptr) == cudaSuccess);
    REQUIRE(cudaStreamSynchronize(nullptr) == cudaSuccess);
  }

  float* data_ = nullptr;
  const size_t count_;
};

}  // namespace psd::testing

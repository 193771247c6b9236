// Device memory shared between processes.

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <functional>
#include <random>
#include <vector>

#include <cuda_runtime.h>
#include <dlfcn.h>
#include <unistd.h>

#include "test/cuda/emulated/two_processes.h"
#include "test/support/catch.h"

namespace psd::ipc_test {
namespace {

using testing::Ends;
using testing::Here;
using testing::kAborted;
using testing::kKilled;
using testing::kSegmentationFault;
using testing::kWell;
using testing::Link;
using testing::must;
using testing::run;
using testing::runAlone;

constexpr size_t kBytes = size_t{2} << 20;
constexpr size_t kCount = kBytes / sizeof(float);
constexpr uint32_t kThreads = 256;
constexpr unsigned kFlags = cudaIpcMemLazyEnablePeerAccess;

/// Like must(): the call returns the error.
void must(cudaError_t error, cudaError_t expected, Here here = Here::current()) {
  if (error == expected) return;
  std::fprintf(stderr, "%s:%d: %s\n", here.file, here.line, cudaGetErrorName(error));
  _exit(1);
}

void must(cudaError_t error, Here here = Here::current()) { must(error, cudaSuccess, here); }

float* allocated(size_t bytes = kBytes) {
  void* memory = nullptr;
  must(cudaMalloc(&memory, bytes));
  return static_cast<float*>(memory);
}

cudaIpcMemHandle_t handleOf(float* memory) {
  cudaIpcMemHandle_t handle;
  must(cudaIpcGetMemHandle(&handle, memory));
  return handle;
}

float* opened(const cudaIpcMemHandle_t& handle, Here here = Here::current()) {
  void* memory = nullptr;
  must(cudaIpcOpenMemHandle(&memory, handle, kFlags), here);
  return static_cast<float*>(memory);
}

cudaError_t errorOfOpening(const cudaIpcMemHandle_t& handle, unsigned flags = kFlags) {
  void* memory = nullptr;
  return cudaIpcOpenMemHandle(&memory, handle, flags);
}

std::vector<float> values(float first) {
  std::vector<float> all(kCount);
  for (size_t i = 0; i < kCount; ++i) all[i] = first + static_cast<float>(i % 1000);
  return all;
}

void write(float* device, const std::vector<float>& from) {
  must(cudaMemcpyAsync(device, from.data(), kBytes, cudaMemcpyDefault));
  must(cudaStreamSynchronize(nullptr));
}

std::vector<float> read(const float* device) {
  std::vector<float> all(kCount);
  must(cudaMemcpyAsync(all.data(), device, kBytes, cudaMemcpyDefault));
  must(cudaStreamSynchronize(nullptr));
  return all;
}

void addKernel(float* values, float summand) { values[blockIdx.x * blockDim.x + threadIdx.x] += summand; }

void add(float* device, float summand, size_t count = kCount) {
  emulated::launch(addKernel, static_cast<uint32_t>(count / kThreads), kThreads)(device, summand);
  must(cudaStreamSynchronize(nullptr));
}

void exportTo(const Link& importer) {
  float* const memory = allocated();
  write(memory, values(1));
  importer.give(handleOf(memory));
  importer.awaitTold();
}

TEST_CASE("what one process writes to shared device memory the other one reads, and its kernels too") {
  const Ends ends = run(
      [](const Link& importer) {
        float* const memory = allocated(2 * kBytes);
        write(memory, values(1));
        write(memory + kCount, values(2));
        importer.give(handleOf(memory));
        importer.awaitTold();
        must(read(memory) == values(7));
        must(read(memory + kCount) == values(102));
        add(memory, 3);
        importer.tell();
        importer.awaitTold();
      },
      [](const Link& exporter) {
        float* const memory = opened(exporter.take<cudaIpcMemHandle_t>());
        must(read(memory) == values(1));
        must(read(memory + kCount) == values(2));
        write(memory, values(7));
        add(memory + kCount, 100);
        exporter.tell();
        exporter.awaitTold();
        must(read(memory) == values(10));
        exporter.tell();
      });
  CHECK(ends.exporter == kWell);
  CHECK(ends.importer == kWell);
}

TEST_CASE("opened memory is memory of every device") {
  const Ends ends = run(exportTo, [](const Link& exporter) {
    float* const memory = opened(exporter.take<cudaIpcMemHandle_t>());
    must(cudaSetDevice(1));
    float* const own = allocated();
    must(cudaMemcpyAsync(own, memory, kBytes, cudaMemcpyDeviceToDevice));
    must(read(own) == values(1));
    add(own, 1);
    must(cudaMemcpyAsync(memory, own, kBytes, cudaMemcpyDefault));
    add(memory, 1);
    must(cudaSetDevice(0));
    must(read(memory) == values(3));
    must(cudaMemset(memory, 0, kBytes));
    must(read(memory) == std::vector<float>(kCount));
    exporter.tell();
  });
  CHECK(ends.exporter == kWell);
  CHECK(ends.importer == kWell);
}

TEST_CASE("a handle opened twice is one mapping, closed as often") {
  const Ends ends = run(exportTo, [](const Link& exporter) {
    const auto handle = exporter.take<cudaIpcMemHandle_t>();
    float* const memory = opened(handle);
    must(opened(handle) == memory);
    must(cudaFree(memory), cudaErrorInvalidValue);
    must(cudaIpcCloseMemHandle(memory + 1), cudaErrorInvalidValue);
    must(cudaIpcCloseMemHandle(memory));
    must(read(memory) == values(1));
    must(cudaIpcCloseMemHandle(memory));
    must(cudaIpcCloseMemHandle(memory), cudaErrorInvalidValue);
    must(cudaMemset(memory, 0, kBytes), cudaErrorInvalidValue);
    must(read(opened(handle)) == values(1));
    exporter.tell();
  });
  CHECK(ends.exporter == kWell);
  CHECK(ends.importer == kWell);
}

TEST_CASE("handles that stand for no memory of another process are refused") {
  const Ends ends = run(
      [](const Link& importer) {
        float* const memory = allocated();
        const cudaIpcMemHandle_t handle = handleOf(memory);
        must(errorOfOpening(handle), cudaErrorDeviceUninitialized);
        importer.give(handle);
        importer.awaitTold();
        must(cudaFree(memory));
        must(errorOfOpening(handle), cudaErrorInvalidResourceHandle);
        handleOf(allocated());  // reuses the numbers that were freed
        importer.tell();
        importer.awaitTold();
      },
      [](const Link& exporter) {
        const auto handle = exporter.take<cudaIpcMemHandle_t>();
        for (const unsigned flags : {0u, 2u, 3u}) must(errorOfOpening(handle, flags), cudaErrorInvalidValue);
        for (size_t at = 0; at < sizeof handle; ++at) {
          cudaIpcMemHandle_t changed = handle;
          changed.reserved[at] ^= 1;
          must(errorOfOpening(changed), cudaErrorInvalidResourceHandle);
        }
        std::mt19937 random(1);
        for (int i = 0; i < 1000; ++i) {
          cudaIpcMemHandle_t garbage;
          std::generate(std::begin(garbage.reserved), std::end(garbage.reserved), std::ref(random));
          if (i == 0) garbage = {};
          must(errorOfOpening(garbage), cudaErrorInvalidResourceHandle);
        }
        must(cudaGetLastError(), cudaErrorInvalidResourceHandle);
        exporter.tell();
        exporter.awaitTold();
        must(errorOfOpening(handle), cudaErrorInvalidResourceHandle);
        exporter.tell();
      });
  CHECK(ends.exporter == kWell);
  CHECK(ends.importer == kWell);
}

TEST_CASE("only what cudaMalloc gave has a handle, and only in whole blocks") {
  const Ends ends = run(exportTo, [](const Link& exporter) {
    cudaIpcMemHandle_t handle;
    float onHost = 0;
    void* pinned = nullptr;
    must(cudaHostAlloc(&pinned, kBytes, cudaHostAllocPortable));
    float* const memory = opened(exporter.take<cudaIpcMemHandle_t>());
    for (void* const each : {static_cast<void*>(&onHost), pinned, static_cast<void*>(memory),
                             static_cast<void*>(allocated() + 1), static_cast<void*>(nullptr)}) {
      must(cudaIpcGetMemHandle(&handle, each), cudaErrorInvalidValue);
    }
    exporter.tell();
  });
  CHECK(ends.exporter == kWell);
  CHECK(ends.importer == kWell);
  CHECK(runAlone([] { handleOf(allocated(kBytes + 256)); }) == kAborted);
}

TEST_CASE("opened memory outlives that it is freed, and its process") {
  const Ends ends = run(
      [](const Link& importer) {
        float* const memory = allocated();
        write(memory, values(1));
        float* const other = allocated();
        write(other, values(2));
        importer.give(handleOf(memory));
        importer.give(handleOf(other));
        importer.awaitTold();
        must(cudaFree(memory));
        std::raise(SIGKILL);
      },
      [](const Link& exporter) {
        const auto handle = exporter.take<cudaIpcMemHandle_t>();
        const auto other = exporter.take<cudaIpcMemHandle_t>();
        float* const memory = opened(handle);
        float* const fromOther = opened(other);
        exporter.tell();
        exporter.awaitDeath();
        add(memory, 4);
        must(read(memory) == values(5));
        must(read(fromOther) == values(2));
        must(opened(handle) == memory);
        must(cudaIpcCloseMemHandle(memory));
        must(cudaIpcCloseMemHandle(memory));
        must(errorOfOpening(handle), cudaErrorInvalidResourceHandle);
      });
  CHECK(ends.exporter == kKilled);
  CHECK(ends.importer == kWell);
}

TEST_CASE("the host cannot touch opened memory, nor a kernel what lies around it") {
  const auto endWith = [](const std::function<void(float*)>& use) {
    const Ends ends = run(
        [](const Link& importer) {
          importer.give(handleOf(allocated()));
          importer.awaitDeath();
        },
        [&](const Link& exporter) {
          float* const memory = opened(exporter.take<cudaIpcMemHandle_t>());
          read(memory);
          use(memory);
        });
    CHECK(ends.exporter == kWell);
    return ends.importer;
  };
  CHECK(endWith([](float*) {}) == kWell);
  CHECK(endWith([](float* memory) { *static_cast<volatile float*>(memory) = 1; }) == kSegmentationFault);
  CHECK(endWith([](float* memory) { add(memory + kCount, 1, kThreads); }) == kSegmentationFault);
  CHECK(endWith([](float* memory) { add(memory - kThreads, 1, kThreads); }) == kSegmentationFault);
  CHECK(endWith([](float* memory) {
          must(cudaIpcCloseMemHandle(memory));
          add(memory, 1);
        }) == kSegmentationFault);
}

TEST_CASE("a copy goes where its pointers lie, also between devices") {
  CHECK(runAlone([] {
          float* const first = allocated();
          must(cudaSetDevice(1));
          float* const second = allocated();
          std::vector<float> there(kCount);
          write(second, values(1));
          must(cudaSetDevice(0));
          must(cudaMemcpyAsync(first, second, kBytes, cudaMemcpyDefault));
          must(read(first) == values(1));
          add(first, 1);
          must(cudaMemcpyAsync(second, first, kBytes, cudaMemcpyDeviceToDevice));
          must(cudaStreamSynchronize(nullptr));
          const std::vector<float> here = values(9);
          must(cudaMemcpyAsync(second, here.data(), kBytes, cudaMemcpyDefault), cudaErrorInvalidValue);
          must(cudaMemcpyAsync(first, here.data(), kBytes, cudaMemcpyDeviceToDevice), cudaErrorInvalidValue);
          must(cudaMemcpyAsync(first, second + 1, kBytes, cudaMemcpyDefault), cudaErrorInvalidValue);
          must(cudaMemcpyAsync(there.data(), here.data(), kBytes, cudaMemcpyDefault));
          must(there == here);
          must(cudaSetDevice(1));
          must(read(second) == values(2));
        }) == kWell);
}

TEST_CASE("a program that exports its symbols has the runtime by name") {
  for (const char* name :
       {"cudaGetDeviceCount", "cudaGetErrorString", "cudaGetLastError", "cudaGetDevice", "cudaSetDevice",
        "cudaRuntimeGetVersion", "cudaStreamCreateWithFlags", "cudaStreamSynchronize", "cudaStreamQuery",
        "cudaStreamDestroy", "cudaMemcpyAsync", "cudaMalloc", "cudaFree", "cudaHostAlloc", "cudaFreeHost",
        "cudaIpcGetMemHandle", "cudaIpcOpenMemHandle", "cudaIpcCloseMemHandle"}) {
    INFO(name);
    CHECK(dlsym(RTLD_DEFAULT, name) != nullptr);
  }
  int version = 0;
  CHECK(cudaRuntimeGetVersion(&version) == cudaSuccess);
  CHECK(version == 12000);
}

}  // namespace
}  // namespace psd::ipc_test

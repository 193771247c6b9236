#include "test/bench/cuda_kernels.h"

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

#include <cuda_runtime.h>

#include "server/store/backend.h"
#include "server/store/cuda/apply.cuh"
#include "server/store/cuda/device.cuh"

namespace psd::bench {
namespace {

constexpr uint64_t kSliceElements = uint64_t{1} << 20;  // in the daemon's largest default slice
constexpr uint32_t kPassesPerRound = 10;                // between two events, whose cost is then small
constexpr std::array<uint32_t, 4> kStreamCounts = {1, 2, 4, 8};
const UpdateScalars kUpdate{.number = 2, .learningRate = 1e-3};

struct StreamEnd {
  void operator()(cudaStream_t stream) const { cudaStreamDestroy(stream); }
};
struct EventEnd {
  void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
};
using Stream = std::unique_ptr<std::remove_pointer_t<cudaStream_t>, StreamEnd>;
using Event = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, EventEnd>;

Status checked(int device, const char* call, cudaError_t error) { return cudaStatus(device, call, error); }

Result<Stream> makeStream(int device) {
  cudaStream_t stream = nullptr;
  PSD_RETURN_IF_ERROR(
      checked(device, "cudaStreamCreate", cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)));
  return Stream(stream);
}

Result<Event> makeEvent(int device) {
  cudaEvent_t event = nullptr;
  PSD_RETURN_IF_ERROR(checked(device, "cudaEventCreate", cudaEventCreate(&event)));
  return Event(event);
}

double medianOf(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Seconds between two events around the work that `queue` puts on the streams, by the clock of the first
/// stream; the others start and end with it.
class Stopwatch {
 public:
  static Result<Stopwatch> make(int device, uint32_t streams) {
    Stopwatch out(device);
    PSD_ASSIGN_OR_RETURN(out.begin_, makeEvent(device));
    PSD_ASSIGN_OR_RETURN(out.end_, makeEvent(device));
    for (uint32_t i = 0; i < streams; i++) {
      PSD_ASSIGN_OR_RETURN(out.streams_.emplace_back(), makeStream(device));
      PSD_ASSIGN_OR_RETURN(out.joined_.emplace_back(), makeEvent(device));
    }
    return out;
  }

  Result<double> time(uint32_t streams, const std::function<cudaError_t(uint32_t, cudaStream_t)>& queue) {
    const cudaStream_t first = streams_[0].get();
    PSD_RETURN_IF_ERROR(checked(device_, "cudaEventRecord", cudaEventRecord(begin_.get(), first)));
    for (uint32_t i = 0; i < streams; i++) {
      const cudaStream_t stream = streams_[i].get();
      PSD_RETURN_IF_ERROR(
          checked(device_, "cudaStreamWaitEvent", cudaStreamWaitEvent(stream, begin_.get(), 0)));
      PSD_RETURN_IF_ERROR(checked(device_, "queueing work", queue(i, stream)));
      PSD_RETURN_IF_ERROR(checked(device_, "cudaEventRecord", cudaEventRecord(joined_[i].get(), stream)));
    }
    for (uint32_t i = 0; i < streams; i++) {
      PSD_RETURN_IF_ERROR(
          checked(device_, "cudaStreamWaitEvent", cudaStreamWaitEvent(first, joined_[i].get(), 0)));
    }
    PSD_RETURN_IF_ERROR(checked(device_, "cudaEventRecord", cudaEventRecord(end_.get(), first)));
    PSD_RETURN_IF_ERROR(checked(device_, "cudaEventSynchronize", cudaEventSynchronize(end_.get())));
    float milliseconds = 0;
    PSD_RETURN_IF_ERROR(checked(device_, "cudaEventElapsedTime",
                                cudaEventElapsedTime(&milliseconds, begin_.get(), end_.get())));
    return static_cast<double>(milliseconds) / 1e3;
  }

 private:
  explicit Stopwatch(int device) : device_(device) {}

  int device_;
  Event begin_, end_;
  std::vector<Stream> streams_;
  std::vector<Event> joined_;
};

struct NamedOptimizer {
  const char* name;
  Optimizer optimizer;
};

std::vector<NamedOptimizer> optimizersToMeasure() {
  std::vector<NamedOptimizer> out = {{"sgd", {}}, {"momentum", {}}, {"adagrad", {}}, {"adam", {}}};
  out[1].optimizer.algorithm = Sgd{.momentum = 0.9};
  out[2].optimizer.algorithm = Adagrad{};
  out[3].optimizer.algorithm = Adam{};
  return out;
}

/// Gradients that are not zero: what remains of one after many steps must not become subnormal.
Result<std::shared_ptr<DeviceFloats>> gradients(int device, uint64_t elements) {
  PSD_ASSIGN_OR_RETURN(auto floats, DeviceFloats::allocate(device, elements));
  PSD_RETURN_IF_ERROR(checked(device, "fill kernel", fillOnDevice(floats->data(), elements, 1.f)));
  return floats;
}

/// Waits for the work on the default stream.
Status settle(int device) { return checked(device, "cudaDeviceSynchronize", cudaDeviceSynchronize()); }

}  // namespace

Result<KernelBench> KernelBench::onDevice(int device) {
  PSD_RETURN_IF_ERROR(makeCudaBackend(device).status());  // whether it can run this program, or why not
  cudaDeviceProp properties;
  PSD_RETURN_IF_ERROR(
      checked(device, "cudaGetDeviceProperties", cudaGetDeviceProperties(&properties, device)));
  return KernelBench(device, properties.name);
}

Result<std::vector<KernelTiming>> KernelBench::optimizers(uint64_t elements, uint32_t rounds) {
  const std::vector<NamedOptimizer> measured = optimizersToMeasure();
  uint32_t slotsMost = 0;
  for (const auto& each : measured) slotsMost = std::max(slotsMost, each.optimizer.slotCount());
  PSD_ASSIGN_OR_RETURN(const auto weights, DeviceFloats::allocate(device_, elements));
  PSD_ASSIGN_OR_RETURN(const auto gradient, gradients(device_, elements));
  std::vector<std::shared_ptr<DeviceFloats>> memory;
  std::vector<float*> slots;
  for (uint32_t i = 0; i < slotsMost; i++) {
    PSD_ASSIGN_OR_RETURN(memory.emplace_back(), DeviceFloats::allocate(device_, elements));
    slots.push_back(memory.back()->data());
  }
  PSD_RETURN_IF_ERROR(settle(device_));
  PSD_ASSIGN_OR_RETURN(Stopwatch watch, Stopwatch::make(device_, 1));
  const auto passes = [](const std::function<cudaError_t(cudaStream_t)>& pass) {
    return [&pass](uint32_t, cudaStream_t stream) {
      cudaError_t error = cudaSuccess;
      for (uint32_t i = 0; i < kPassesPerRound && error == cudaSuccess; i++) error = pass(stream);
      return error;
    };
  };
  std::vector<std::vector<double>> seconds(measured.size());
  std::vector<double> copySeconds;
  for (uint32_t round = 0; round <= rounds; round++) {  // the first warms up
    const auto keep = [round](std::vector<double>& list, double value) {
      if (round > 0) list.push_back(value / kPassesPerRound);
    };
    const std::function<cudaError_t(cudaStream_t)> copy = [&](cudaStream_t stream) {
      return cudaMemcpyAsync(weights->data(), gradient->data(), elements * sizeof(float),
                             cudaMemcpyDeviceToDevice, stream);
    };
    PSD_ASSIGN_OR_RETURN(const double copied, watch.time(1, passes(copy)));
    keep(copySeconds, copied);
    for (size_t i = 0; i < measured.size(); i++) {
      const Optimizer& optimizer = measured[i].optimizer;
      const DeviceSlice slice{
          0, elements, weights->data(), gradient->data(), {}, std::span(slots).first(optimizer.slotCount())};
      const std::function<cudaError_t(cudaStream_t)> apply = [&](cudaStream_t stream) {
        return applyOnDevice(optimizer, kUpdate, slice, stream);
      };
      PSD_ASSIGN_OR_RETURN(const double taken, watch.time(1, passes(apply)));
      keep(seconds[i], taken);
    }
  }
  std::vector<KernelTiming> out;
  for (size_t i = 0; i < measured.size(); i++) {
    // Reads weight, gradient and each slot; writes weight and each slot.
    const uint64_t values = 3 + 2 * measured[i].optimizer.slotCount();
    out.push_back({measured[i].name, elements, elements * sizeof(float) * values, medianOf(seconds[i]),
                   elements * sizeof(float) * 2, medianOf(copySeconds)});
  }
  return out;
}

Result<std::vector<HogwildTiming>> KernelBench::hogwild(uint64_t elements, uint32_t rounds) {
  const Optimizer sgd;
  PSD_ASSIGN_OR_RETURN(const auto weights, DeviceFloats::allocate(device_, elements));
  std::vector<std::shared_ptr<DeviceFloats>> pushed;  // by stream
  for (uint32_t i = 0; i < kStreamCounts.back(); i++) {
    PSD_ASSIGN_OR_RETURN(pushed.emplace_back(), gradients(device_, elements));
  }
  PSD_RETURN_IF_ERROR(settle(device_));
  PSD_ASSIGN_OR_RETURN(Stopwatch watch, Stopwatch::make(device_, kStreamCounts.back()));
  const auto push = [&](uint32_t index, cudaStream_t stream) {
    cudaError_t error = cudaSuccess;
    for (uint64_t at = 0; at < elements && error == cudaSuccess; at += kSliceElements) {
      const DeviceSlice slice{
          at, std::min(kSliceElements, elements - at), weights->data(), pushed[index]->data() + at, {}, {}};
      error = applyOnDevice(sgd, kUpdate, slice, stream);
    }
    return error;
  };
  std::array<std::vector<double>, kStreamCounts.size()> seconds;
  for (uint32_t round = 0; round <= rounds; round++) {  // the first warms up
    for (size_t i = 0; i < kStreamCounts.size(); i++) {
      PSD_ASSIGN_OR_RETURN(const double taken, watch.time(kStreamCounts[i], push));
      if (round > 0) seconds[i].push_back(taken);
    }
  }
  std::vector<HogwildTiming> out;
  for (size_t i = 0; i < kStreamCounts.size(); i++) {
    const uint32_t streams = kStreamCounts[i];
    out.push_back({streams, elements, elements * sizeof(float) * 3 * streams, medianOf(seconds[i])});
  }
  return out;
}

}  // namespace psd::bench

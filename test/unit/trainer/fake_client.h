#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "trainer/client/client.h"

namespace psd::testing {

/// A Pending that is already done.
template <class T>
Pending<T> ready(Result<T> result) {
  class Ready : public Pending<T>::Impl {
   public:
    explicit Ready(Result<T> result) : result_(std::move(result)) {}
    Result<T> wait() override { return std::move(result_); }

   private:
    Result<T> result_;
  };
  return Pending<T>(std::make_unique<Ready>(std::move(result)));
}

/// A daemon with one shard and plain SGD, in this process. Shared by the FakeClients of one thread.
struct FakeDaemon {
  float learningRate = 0.1f;
  std::vector<float> values;  ///< empty until the first trainer has joined
  uint64_t version = 0;
  uint64_t modelSignature = 0;
  std::vector<uint64_t> steps;    ///< of every push, in order
  std::vector<uint32_t> samples;  ///< of every push, in order
  int left = 0;
  uint64_t failPushAtStep = 0;  ///< 0: never
  Error failure{};
};

/// Owned by one thread.
class FakeClient : public Client {
 public:
  explicit FakeClient(FakeDaemon& daemon) : daemon_(daemon) {}

  Result<JoinInfo> join(const Membership&, const ModelSpec& model,
                        const std::function<std::span<const float>()>& initialValues) override {
    JoinInfo info{false, "fake", "cpu", 1, "0"};
    if (daemon_.values.empty()) {
      const auto initial = initialValues();
      daemon_.values.assign(initial.begin(), initial.end());
      daemon_.modelSignature = model.signature();
      info.broughtInitialValues = true;
    }
    if (daemon_.modelSignature != model.signature()) {
      return Error{ErrorCode::modelMismatch, "the models differ"};
    }
    return info;
  }

  Result<JoinInfo> observe(const ModelSpec&) override {
    if (daemon_.values.empty()) return Error{ErrorCode::notReady, "the model has no values yet"};
    return JoinInfo{false, "fake", "cpu", 1, "0"};
  }

  Pending<PullInfo> pull(std::span<float> destination) override {
    std::copy(daemon_.values.begin(), daemon_.values.end(), destination.begin());
    basis_ = daemon_.version;
    return ready<PullInfo>(PullInfo{{Version{basis_}}, 0.0});
  }

  Pending<PushInfo> push(Step step, std::span<const float> gradient, uint32_t samples) override {
    if (step.value == daemon_.failPushAtStep) return ready<PushInfo>(daemon_.failure);
    for (const float value : gradient) {
      if (!std::isfinite(value)) return ready<PushInfo>(Error{ErrorCode::nonFinite, "refused"});
    }
    for (size_t i = 0; i < gradient.size(); ++i) {
      daemon_.values[i] -= daemon_.learningRate * gradient[i];
    }
    daemon_.steps.push_back(step.value);
    daemon_.samples.push_back(samples);
    const uint64_t staleness = daemon_.version++ - basis_;
    return ready<PushInfo>(PushInfo{{Version{daemon_.version}}, staleness, 0.0});
  }

  Result<PingInfo> ping(uint64_t, uint32_t) override { return PingInfo{}; }

  Status leave() override {
    ++daemon_.left;
    return {};
  }
  uint64_t bytesPulled() const override { return 0; }
  uint64_t bytesPushed() const override { return 0; }

 private:
  FakeDaemon& daemon_;
  uint64_t basis_ = 0;
};

}  // namespace psd::testing

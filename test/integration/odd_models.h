#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/budget/byte_budget.h"
#include "common/types/model_layout.h"
#include "test/support/catch.h"
#include "trainer/executor/float_arrays.h"
#include "trainer/executor/remote/tensor_wire.h"
#include "trainer/executor/stages/execution.h"

// Models for an executor that do not use LibTorch.

namespace psd::testing {

/// A model whose forward passes wait for a gate. Thread-safe.
class GatedModel final : public ExecutionModel {
 public:
  /// The gate: a pass with these inputs continues when it returns. Called on the thread that computes the
  /// pass.
  using Gate = std::function<void(const std::vector<NamedTensor>& inputs)>;

  GatedModel(std::unique_ptr<ExecutionModel> inner, Gate gate)
      : inner_(std::move(inner)), gate_(std::move(gate)) {}
  GatedModel(std::unique_ptr<ExecutionModel> inner, std::shared_future<void> gate)
      : GatedModel(std::move(inner), [gate = std::move(gate)](const auto&) { gate.wait(); }) {}

  const ModelSpec& spec() const override { return inner_->spec(); }
  const std::vector<ColumnSpec>& inputs() const override { return inner_->inputs(); }
  Weights initialValues() const override { return inner_->initialValues(); }
  Result<std::vector<RowLookup>> lookUp(const std::vector<NamedTensor>& inputs, bool training) override {
    return inner_->lookUp(inputs, training);
  }
  Result<std::unique_ptr<ForwardPass>> forward(Weights weights, std::vector<NamedTensor> inputs,
                                               bool training, PassRows rows) override {
    gate_(inputs);
    return inner_->forward(std::move(weights), std::move(inputs), training, std::move(rows));
  }

 private:
  const std::unique_ptr<ExecutionModel> inner_;
  const Gate gate_;
};

/// A pass of LargeOutput: one output with that many values.
class LargePass final : public ForwardPass {
 public:
  explicit LargePass(uint64_t values)
      : outputs_{{"y", ElementType::f32, {values}, std::vector<std::byte>(values * sizeof(float))}} {}
  const std::vector<NamedTensor>& outputs() const override { return outputs_; }
  Status backward(const std::vector<NamedTensor>&, std::span<float> gradient) override {
    std::ranges::fill(gradient, 0.0f);
    return {};
  }

 private:
  const std::vector<NamedTensor> outputs_;
};

/// A model with empty inputs and large outputs. Immutable.
class LargeOutput final : public ExecutionModel {
 public:
  LargeOutput(std::unique_ptr<ExecutionModel> inner, uint64_t values)
      : inner_(std::move(inner)), values_(values) {}
  const ModelSpec& spec() const override { return inner_->spec(); }
  const std::vector<ColumnSpec>& inputs() const override { return inputs_; }
  Weights initialValues() const override { return inner_->initialValues(); }
  Result<std::unique_ptr<ForwardPass>> forward(Weights, std::vector<NamedTensor>, bool, PassRows) override {
    return std::unique_ptr<ForwardPass>(new LargePass(values_));
  }

 private:
  const std::unique_ptr<ExecutionModel> inner_;
  const std::vector<ColumnSpec> inputs_;
  const uint64_t values_;
};

/// A pass of ManyTensors: one output for each sample of the input, and gradients of zero.
class ManyOutputs final : public ForwardPass {
 public:
  explicit ManyOutputs(uint64_t count) {
    for (uint64_t i = 0; i < count; i++) {
      outputs_.push_back({"y" + std::to_string(i), ElementType::f32, {1}, std::vector<std::byte>(4)});
    }
  }
  const std::vector<NamedTensor>& outputs() const override { return outputs_; }
  Status backward(const std::vector<NamedTensor>&, std::span<float> gradient) override {
    std::ranges::fill(gradient, 0.0f);
    return {};
  }

 private:
  std::vector<NamedTensor> outputs_;
};

/// A model with one parameter more than a message has tensors. Immutable.
class ManyTensors final : public ExecutionModel {
 public:
  ManyTensors() {
    for (uint32_t i = 0; i <= wire::kTensorListMax; i++) {
      spec_.tensors.push_back({"p" + std::to_string(i), DType::f32, {1}});
    }
  }
  const ModelSpec& spec() const override { return spec_; }
  const std::vector<ColumnSpec>& inputs() const override { return inputs_; }
  Weights initialValues() const override {
    const uint64_t elements = ModelLayout(spec_).totalElements();
    auto budget = ByteBudget::make(elements * sizeof(float));
    auto values = FloatArrays(elements, std::move(budget)).take();
    PSD_REQUIRE_OK(values);
    std::fill_n(values->get(), elements, 0.0f);
    return *std::move(values);
  }
  Result<std::unique_ptr<ForwardPass>> forward(Weights, std::vector<NamedTensor> inputs, bool,
                                               PassRows) override {
    return std::unique_ptr<ForwardPass>(new ManyOutputs(inputs.at(0).shape.at(0)));
  }

 private:
  ModelSpec spec_{"many", {}, {}};
  std::vector<ColumnSpec> inputs_{{"x", ElementType::f32, {}, 0}};
};

}  // namespace psd::testing

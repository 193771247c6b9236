#pragma once

#include "trainer/model/model.h"
#include "trainer/remote/remote_steps.h"

namespace psd {

/// A classifier whose passes are computed at an executor, for the training loop: it has no parameters here,
/// and what computeGradients() leaves, the gradients of the outputs, goes with RemoteClient::push(). Takes
/// the module's inputs and the column "label", i64. Owned by the thread of `steps`, which outlives it.
class RemoteModel final : public Model {
 public:
  explicit RemoteModel(RemoteSteps& steps) : steps_(steps), spec_{steps.module().name, {}, {}} {}

  /// Of the module's name alone.
  const ModelSpec& spec() const override { return spec_; }
  std::vector<ColumnSpec> inputs() const override;
  std::string device() const override { return "the executor at " + steps_.executor(); }
  std::span<float> parameters() override { return {}; }
  std::span<float> gradients() override { return {}; }
  /// One array, and none to spare: a step waits for the one before.
  Status reserve(uint32_t gradientArrays, bool spare) override;
  std::span<float> spareParameters() override { return {}; }
  void swapParameters() override {}
  void rotateGradients() override {}
  Result<double> computeGradients(const Batch& batch, const GradientsFinal& whenFinal) override;
  Result<Score> score(const Batch& batch) override;

 private:
  RemoteSteps& steps_;
  const ModelSpec spec_;
};

}  // namespace psd

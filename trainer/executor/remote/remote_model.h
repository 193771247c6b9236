#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "trainer/executor/remote/remote_steps.h"
#include "trainer/model/model.h"
#include "trainer/task/loss_spec.h"

namespace psd {

/// A model whose passes are computed at an executor, for the training loop. It has no parameters or rows in
/// this process; computeGradients() leaves the gradients of the outputs, which RemoteClient::push() sends.
/// Its columns are the module's inputs and the target of the loss that the executor reports. Owned by the
/// thread of `steps`, which outlives it.
class RemoteModel final : public Model {
 public:
  /// `microBatches`: the number of parts into which a batch is divided, whose passes overlap; must pass
  /// checkParts(). protocolMismatch: the module's loss is unknown to this version.
  static Result<std::unique_ptr<RemoteModel>> make(RemoteSteps& steps, uint32_t microBatches = 1);

  /// Has only the module's name.
  const ModelSpec& spec() const override { return spec_; }
  std::vector<ColumnSpec> inputs() const override;
  std::string device() const override { return "the executor at " + steps_.executor(); }
  std::span<float> parameters() override { return {}; }
  std::span<float> gradients() override { return {}; }
  /// One array and no spare one: steps do not overlap.
  Status reserve(uint32_t gradientArrays, bool spare) override;
  std::span<float> spareParameters() override { return {}; }
  void swapParameters() override {}
  void rotateGradients() override {}
  Result<double> computeGradients(const Batch& batch, const GradientsFinal& whenFinal) override;
  Result<Score> score(const Batch& batch) override;

 private:
  RemoteModel(RemoteSteps& steps, LossSpec loss, uint32_t microBatches)
      : steps_(steps),
        spec_{steps.module().name, {}, {}},
        loss_(std::move(loss)),
        microBatches_(microBatches) {}
  NamedTensor targetOf(const Batch& batch) const;

  RemoteSteps& steps_;
  const ModelSpec spec_;
  const LossSpec loss_;
  const uint32_t microBatches_;
};

}  // namespace psd

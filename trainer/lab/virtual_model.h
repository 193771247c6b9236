#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/types/model_layout.h"
#include "trainer/model/model.h"

namespace psd {

/// A virtual trainer's model: its own parameters and gradients, in host memory, and a shared model that
/// computes with them. Owned by the trainer's thread. The shared model outlives it and is used only by the
/// trainer that has the turn.
class VirtualModel final : public Model {
 public:
  /// `onComputed` is called after gradients are computed; if it returns false, they are discarded
  /// (ErrorCode::interrupted).
  VirtualModel(Model& shared, std::function<bool()> onComputed);

  const ModelSpec& spec() const override { return shared_.spec(); }
  std::vector<ColumnSpec> inputs() const override { return shared_.inputs(); }
  std::string device() const override { return shared_.device(); }
  std::span<float> parameters() override { return span(parameters_); }
  std::span<float> gradients() override { return span(gradients_); }
  /// `gradientArrays` is ignored: there is one gradient array.
  Status reserve(uint32_t gradientArrays, bool spare) override;
  std::span<float> spareParameters() override { return spare_ ? span(spare_) : std::span<float>(); }
  void swapParameters() override { std::swap(parameters_, spare_); }
  void rotateGradients() override {}
  std::vector<RowLookup> lookUp(const Batch& batch, Purpose purpose) override {
    return shared_.lookUp(batch, purpose);
  }
  Result<double> computeGradients(const Batch& batch, const GradientsFinal& whenFinal) override;
  Result<Score> score(const Batch& batch) override;

 private:
  struct Free {
    void operator()(float* memory) const;
  };
  using Array = std::unique_ptr<float[], Free>;

  Array zeros() const;
  std::span<float> span(const Array& array) const { return {array.get(), layout_.totalElements()}; }

  Model& shared_;
  const std::function<bool()> onComputed_;
  const ModelLayout layout_;
  Array parameters_, gradients_;
  Array spare_;  // null: not reserved
};

}  // namespace psd

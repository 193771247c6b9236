#pragma once

#include <string>

#include "trainer/model/network.h"
#include "trainer/task/declaration.h"

namespace psd {

/// The outputs of a user's own model for a batch, by name:
///
///   "loss"          the mean loss, a scalar
///   "loss.weight"   the weight of that mean, a scalar; default: the number of samples
///   a metric        [2]: its sum and weight over the batch; of kind auc [n, 2]: score and label (0 or 1) of
///                   each sample
///
/// Anything else is a NetworkError.
class ModelOutputs {
 public:
  explicit ModelOutputs(Tensors outputs) : outputs_(std::move(outputs)) {}

  /// The loss; finite.
  torch::Tensor loss() const;
  /// The score with the metrics of `declaration`; the outputs must not contain others.
  Score score(const ModelDeclaration& declaration, int64_t samples) const;

 private:
  const torch::Tensor& find(const std::string& name) const;
  double scalar(const std::string& name) const;
  Metric metric(const ModelDeclaration::DeclaredMetric& declared, int64_t samples) const;
  void checkNames(const ModelDeclaration& declaration) const;

  const Tensors outputs_;
};

/// Human-readable: "f32[32,10]".
std::string describeTensor(const torch::Tensor& tensor);

}  // namespace psd

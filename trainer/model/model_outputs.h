#pragma once

#include <string>

#include "trainer/model/network.h"
#include "trainer/task/declaration.h"

namespace psd {

/// What a user's own model gives for a batch, by name:
///
///   "loss"          the mean loss, a scalar
///   "loss.weight"   what that is the mean over, a scalar; left out: the samples
///   a metric        [2]: its sum and weight over the batch; of kind auc [n, 2]: a score and a label, 0 or 1,
///   each
///
/// Whatever does not keep to that is a NetworkError.
class ModelOutputs {
 public:
  explicit ModelOutputs(Tensors outputs) : outputs_(std::move(outputs)) {}

  /// Finite.
  torch::Tensor loss() const;
  /// As `declaration` says; the outputs are these metrics and no others.
  Score score(const ModelDeclaration& declaration, int64_t samples) const;

 private:
  const torch::Tensor& find(const std::string& name) const;
  double scalar(const std::string& name) const;
  Metric metric(const ModelDeclaration::DeclaredMetric& declared, int64_t samples) const;
  void checkNames(const ModelDeclaration& declaration) const;

  const Tensors outputs_;
};

/// "f32[32,10]", for people.
std::string describeTensor(const torch::Tensor& tensor);

}  // namespace psd

#include "trainer/model/model_outputs.h"

#include <cmath>

#include "common/text/text.h"

namespace psd {
namespace {

constexpr const char* kLoss = "loss";
constexpr const char* kLossWeight = "loss.weight";

bool isNumber(const torch::Tensor& tensor) {
  return tensor.defined() && !tensor.is_complex() && tensor.layout() == torch::kStrided;
}

}  // namespace

std::string describeTensor(const torch::Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  const std::string_view type = tensor.scalar_type() == torch::kFloat32   ? "f32"
                                : tensor.scalar_type() == torch::kFloat64 ? "f64"
                                : tensor.scalar_type() == torch::kInt32   ? "i32"
                                : tensor.scalar_type() == torch::kInt64   ? "i64"
                                                                        : c10::toString(tensor.scalar_type());
  return std::string(type) + "[" +
         joined(tensor.sizes(), ",", [](int64_t extent) { return std::to_string(extent); }) + "]";
}

const torch::Tensor& ModelOutputs::find(const std::string& name) const {
  const auto found = outputs_.find(name);
  if (found != outputs_.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [each, tensor] : outputs_) names.push_back("'" + printable(each, 60) + "'");
  throw NetworkError("forward returned no '" + name + "'; it returned " +
                     (names.empty() ? "nothing" : joined(names, ", ")));
}

double ModelOutputs::scalar(const std::string& name) const {
  const torch::Tensor& tensor = find(name);
  if (!isNumber(tensor) || tensor.dim() != 0) {
    throw NetworkError("forward returned '" + name + "' as " + describeTensor(tensor) +
                       "; expected a scalar");
  }
  return tensor.item<double>();
}

torch::Tensor ModelOutputs::loss() const {
  const double value = scalar(kLoss);
  const torch::Tensor& loss = find(kLoss);
  if (!loss.is_floating_point()) {
    throw NetworkError("forward returned 'loss' as " + describeTensor(loss) + "; expected f32");
  }
  if (!std::isfinite(value)) {
    throw NetworkError("forward returned 'loss' as " + std::string(std::isnan(value) ? "NaN" : "infinity") +
                           "; is the data finite, or was the learning rate too high?",
                       ErrorCode::nonFinite);
  }
  return loss;
}

Metric ModelOutputs::metric(const ModelDeclaration::DeclaredMetric& declared, int64_t samples) const {
  const torch::Tensor& tensor = find(declared.name);
  const auto wrong = [&](const char* expected) {
    return NetworkError("forward returned '" + declared.name + "' as " + describeTensor(tensor) +
                        "; expected " + expected);
  };
  if (declared.kind != MetricKind::auc) {
    if (!isNumber(tensor) || tensor.dim() != 1 || tensor.size(0) != 2) throw wrong("[2], sum and weight");
    const torch::Tensor sums = tensor.to(torch::kCPU, torch::kFloat64).contiguous();
    const double sum = sums.data_ptr<double>()[0], weight = sums.data_ptr<double>()[1];
    const bool fits = std::isfinite(sum) && std::isfinite(weight) && weight >= 0;
    if (!fits || (declared.kind == MetricKind::root && sum < 0)) {
      throw NetworkError("forward returned '" + declared.name + "' as " + std::to_string(sum) + " and " +
                         std::to_string(weight) + "; expected a finite sum" +
                         (declared.kind == MetricKind::root ? " of squares" : "") +
                         " and a weight that is not negative");
    }
    return Metric::of(declared.name, declared.kind, sum, weight);
  }
  if (!isNumber(tensor) || tensor.dim() != 2 || tensor.size(0) != samples || tensor.size(1) != 2) {
    throw wrong("[n,2], a score and a label, 0 or 1, of each sample");
  }
  Metric metric = Metric::auc(declared.name);
  const torch::Tensor pairs = tensor.to(torch::kCPU, torch::kFloat32).contiguous();
  const float* const values = pairs.data_ptr<float>();
  for (int64_t i = 0; i < samples; ++i) {
    const float score = values[2 * i], label = values[2 * i + 1];
    if (!std::isfinite(score) || (label != 0 && label != 1)) {
      throw NetworkError("forward returned '" + declared.name + "' with score " + std::to_string(score) +
                         " and label " + std::to_string(label) + "; expected a finite score, and 0 or 1");
    }
    metric.count(score, label != 0);
  }
  return metric;
}

void ModelOutputs::checkNames(const ModelDeclaration& declaration) const {
  for (const auto& [name, tensor] : outputs_) {
    const bool known =
        name == kLoss || name == kLossWeight ||
        std::ranges::count(declaration.metrics, name, &ModelDeclaration::DeclaredMetric::name) != 0;
    if (!known) {
      throw NetworkError("forward returned '" + printable(name, 60) +
                         "', which is none of the metrics that psd.json names");
    }
  }
}

Score ModelOutputs::score(const ModelDeclaration& declaration, int64_t samples) const {
  checkNames(declaration);
  const double mean = scalar(kLoss);
  const double weight = outputs_.contains(kLossWeight) ? scalar(kLossWeight) : static_cast<double>(samples);
  if (!std::isfinite(weight) || weight <= 0) {
    throw NetworkError("forward returned 'loss.weight' as " + std::to_string(weight) +
                       "; expected a number above 0");
  }
  Score score{static_cast<uint64_t>(samples), {Metric::of(kLoss, MetricKind::mean, mean * weight, weight)}};
  for (const auto& declared : declaration.metrics) score.metrics.push_back(metric(declared, samples));
  return score;
}

}  // namespace psd

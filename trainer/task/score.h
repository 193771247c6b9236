#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace psd {

/// How a figure comes from sums over samples.
enum class MetricKind : uint8_t {
  mean,         ///< sum / weight
  share,        ///< the same, shown in per cent: accuracy, of the right answers
  exponential,  ///< e^(sum / weight): perplexity, of the losses
  root,         ///< √(sum / weight): RMSE, of the squared errors
  auc,          ///< the area under the ROC curve, of all samples' scores
};

/// A named figure as sums, so that those of several batches and trainers add up to that of all. A value type.
struct Metric {
  std::string name;
  MetricKind kind = MetricKind::mean;
  double sum = 0, weight = 0;               ///< of any kind but auc
  std::vector<float> negatives, positives;  ///< of auc: the scores of samples with label 0, and with label 1

  /// Of any kind but auc.
  static Metric of(std::string_view name, MetricKind kind, double sum, double weight) {
    return {std::string(name), kind, sum, weight, {}, {}};
  }
  /// Without any score.
  static Metric auc(std::string_view name) { return {std::string(name), MetricKind::auc, 0, 0, {}, {}}; }

  /// To an auc: a score for a sample whose label is 1 or 0; only their order matters, and which are equal.
  void count(float score, bool label) { (label ? positives : negatives).push_back(score); }
  /// Adds that of other samples.
  Metric& operator+=(const Metric& other);
  /// The figure; NaN where there is nothing that it could be of.
  double value() const;
  /// "perplexity 117.52", "accuracy 97.50 %"
  std::string toString() const;
};

/// How well a model does on some samples. A value type.
struct Score {
  uint64_t samples = 0;
  std::vector<Metric> metrics;  ///< in the order in which they are shown, "loss" first; each name once

  /// NaN where there is no such metric.
  double value(std::string_view name) const;
  double loss() const { return value("loss"); }
  /// Adds that of other samples under the same model.
  Score& operator+=(const Score& other);
  /// "loss 0.0812, accuracy 97.50 %"
  std::string toString() const;
};

}  // namespace psd

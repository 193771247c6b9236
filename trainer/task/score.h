#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace psd {

/// How a metric is computed from sums over samples.
enum class MetricKind : uint8_t {
  mean,         ///< sum / weight
  share,        ///< sum / weight as a percentage: accuracy
  exponential,  ///< e^(sum / weight): perplexity from losses
  root,         ///< √(sum / weight): RMSE from squared errors
  auc,          ///< area under the ROC curve of the samples' scores
  count,        ///< sum: a number of weights
};

/// A metric as sums, so that those of several batches and trainers can be added. A value type.
struct Metric {
  std::string name;
  MetricKind kind = MetricKind::mean;
  double sum = 0, weight = 0;               ///< every kind except auc
  std::vector<float> negatives, positives;  ///< auc: scores of samples with label 0, and with label 1

  /// For every kind except auc.
  static Metric of(std::string_view name, MetricKind kind, double sum, double weight) {
    return {std::string(name), kind, sum, weight, {}, {}};
  }
  /// An auc without scores.
  static Metric auc(std::string_view name) { return {std::string(name), MetricKind::auc, 0, 0, {}, {}}; }

  /// Adds a sample's score to an auc; only the order of scores matters.
  void count(float score, bool label) { (label ? positives : negatives).push_back(score); }
  /// Adds the metric of other samples.
  Metric& operator+=(const Metric& other);
  /// The value; NaN without samples.
  double value() const;
  /// "perplexity 117.52", "accuracy 97.50 %"
  std::string toString() const;
};

/// The metrics of a model on a set of samples. A value type.
struct Score {
  uint64_t samples = 0;
  std::vector<Metric> metrics;  ///< in display order, "loss" first; names are unique

  /// NaN if there is no such metric.
  double value(std::string_view name) const;
  double loss() const { return value("loss"); }
  /// Adds the score of the same model on other samples.
  Score& operator+=(const Score& other);
  /// "loss 0.0812, accuracy 97.50 %"
  std::string toString() const;
};

}  // namespace psd

#include "trainer/eval/evaluate.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/config/json_file.h"
#include "trainer/loop/non_finite.h"
#include "trainer/loop/rows_of_batch.h"

namespace psd {
size_t Evaluation::batchCount() const { return (dataset_.sampleCount() + batchSize_ - 1) / batchSize_; }

Status Evaluation::fillBatch(size_t number) {
  const size_t begin = number * batchSize_;
  std::vector<uint32_t> samples(std::min(batchSize_, dataset_.sampleCount() - begin));
  std::iota(samples.begin(), samples.end(), static_cast<uint32_t>(begin));
  return dataset_.fill(samples, batch_);
}

Status Evaluation::makeRows(Client& client) {
  lookups_.assign(batchCount(), {});
  std::vector<RowBatch::Feature> features;
  for (size_t i = 0; i < lookups_.size(); ++i) {
    PSD_RETURN_IF_ERROR(fillBatch(i));
    lookups_[i] = model_.lookUp(batch_, Purpose::scoring);
    const auto more = featuresOf(lookups_[i]);
    features.insert(features.end(), more.begin(), more.end());
  }
  if (!rows_) rows_.emplace(client.makeRowBatch());
  rows_->make(features);
  return {};
}

Result<PullInfo> Evaluation::pull(Client& client) {
  if (!model_.spec().tables.empty()) PSD_RETURN_IF_ERROR(makeRows(client));
  return client.pull(model_.parameters(), rows_ ? &*rows_ : nullptr).wait();
}

Result<Score> Evaluation::scoreAll(const ShouldStop& shouldStop) {
  Score total;
  size_t lookups = 0;  // of the previous batches
  for (size_t i = 0; i < batchCount(); ++i) {
    if (shouldStop && shouldStop()) return Error{ErrorCode::interrupted, "the evaluation was interrupted"};
    PSD_RETURN_IF_ERROR(fillBatch(i));
    if (rows_) {
      batch_.rows().lookups = lookups_[i];
      bindRows(*rows_, lookups, batch_);
      lookups += lookups_[i].size();
    }
    PSD_ASSIGN_OR_RETURN(const Score score, model_.score(batch_));
    total += score;
  }
  return total;
}

Result<Score> Evaluation::score(const ShouldStop& shouldStop) {
  PSD_ASSIGN_OR_RETURN(const auto parameters, model_.onHost(model_.parameters()));
  if (const std::string where = describeNonFinite(model_.spec(), parameters); !where.empty()) {
    return Error{ErrorCode::nonFinite,
                 "the daemon's parameters are not finite: " + where + "; was the learning rate too high?"};
  }
  PSD_ASSIGN_OR_RETURN(Score score, scoreAll(shouldStop));
  if (rows_ && model_.countsWeights()) {
    score.metrics.push_back(
        Metric::of("nonzero_weights", MetricKind::count, static_cast<double>(nonZeroCount(*rows_)), 0));
  }
  if (!std::isfinite(score.loss())) {
    return Error{ErrorCode::nonFinite,
                 "the loss on " + dataset_.describe() +
                     " is not finite, though the daemon's parameters are: they are too large; was the "
                     "learning rate too high?"};
  }
  return score;
}

Result<EvalReport> evaluateServer(Client& client, Model& model, const Dataset& dataset) {
  PSD_RETURN_IF_ERROR(client.observe(model.spec()));
  return evaluateObserved(client, model, dataset);
}

Result<EvalReport> evaluateObserved(Client& client, Model& model, const Dataset& dataset,
                                    const ShouldStop& shouldStop) {
  Evaluation evaluation(model, dataset);
  PSD_ASSIGN_OR_RETURN(PullInfo pulled, evaluation.pull(client));
  PSD_ASSIGN_OR_RETURN(const Score score, evaluation.score(shouldStop));
  return EvalReport{model.spec().name, dataset.describe(), std::move(pulled.versions), score};
}

std::string formatScore(const Score& score, const std::string& data) {
  return score.toString() + " on " + data;
}

std::string formatVersions(const std::vector<Version>& versions) {
  const auto [least, most] = std::minmax_element(versions.begin(), versions.end(),
                                                 [](Version a, Version b) { return a.value < b.value; });
  if (least->value == most->value) return fmt::format("version {}", most->value);
  return fmt::format("versions {} to {}", least->value, most->value);
}

std::string formatJson(const EvalReport& report, std::optional<double> seconds) {
  nlohmann::ordered_json json;
  if (seconds) json["seconds"] = *seconds;
  json["model"] = report.model;
  json["data"] = report.data;
  json["samples"] = report.score.samples;
  for (const Metric& metric : report.score.metrics) {
    if (metric.kind == MetricKind::count) {
      json[metric.name] = static_cast<uint64_t>(metric.value());
    } else {
      json[metric.name] = metric.value();
    }
  }
  json["versions"] = nlohmann::ordered_json::array();
  for (const Version version : report.versions) json["versions"].push_back(version.value);
  return jsonText(json);
}

}  // namespace psd

#include "trainer/eval/evaluate.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <span>
#include <utility>

#include <nlohmann/json.hpp>

#include "common/config/json_file.h"
#include "trainer/loop/batches.h"
#include "trainer/loop/non_finite.h"

namespace psd {
namespace {

constexpr size_t kBatchSize = 256;  // large enough to be fast, some 100 MB in the convolutional net

}  // namespace

Result<Score> evaluate(Model& model, const Dataset& dataset) {
  std::vector<uint32_t> order(dataset.sampleCount());
  std::iota(order.begin(), order.end(), 0u);
  Batch batch;
  Score total;
  for (size_t begin = 0; begin < order.size(); begin += kBatchSize) {
    const size_t count = std::min(kBatchSize, order.size() - begin);
    dataset.fill(std::span(order).subspan(begin, count), batch);
    PSD_ASSIGN_OR_RETURN(const Score score, model.score(viewOf(batch)));
    total += score;
  }
  return total;
}

Result<Score> evaluatePulled(Model& model, const Dataset& dataset) {
  PSD_ASSIGN_OR_RETURN(const auto parameters, model.onHost(model.parameters()));
  if (const std::string where = describeNonFinite(model.spec(), parameters); !where.empty()) {
    return Error{ErrorCode::nonFinite,
                 "the daemon's parameters are not finite: " + where + "; was the learning rate too high?"};
  }
  PSD_ASSIGN_OR_RETURN(const Score score, evaluate(model, dataset));
  if (!std::isfinite(score.meanLoss())) {
    return Error{ErrorCode::nonFinite,
                 "the loss on " + dataset.describe() +
                     " is not finite, though the daemon's parameters are: they are too large; was the "
                     "learning rate too high?"};
  }
  return score;
}

Result<EvalReport> evaluateServer(Client& client, Model& model, const Dataset& dataset) {
  PSD_RETURN_IF_ERROR(client.observe(model.spec()));
  PSD_ASSIGN_OR_RETURN(PullInfo pulled, client.pull(model.parameters()).wait());
  PSD_ASSIGN_OR_RETURN(const Score score, evaluatePulled(model, dataset));
  return EvalReport{model.spec().name, dataset.describe(), std::move(pulled.versions), score};
}

std::string formatScore(const Score& score, const std::string& data) {
  char text[96];
  std::snprintf(text, sizeof text, "loss %.4f, accuracy %.2f %% on ", score.meanLoss(),
                100 * score.accuracy());
  return text + data;
}

std::string formatJson(const EvalReport& report) {
  nlohmann::ordered_json versions = nlohmann::ordered_json::array();
  for (const Version version : report.versions) versions.push_back(version.value);
  const nlohmann::ordered_json json = {{"model", report.model},
                                       {"data", report.data},
                                       {"samples", report.score.samples},
                                       {"loss", report.score.meanLoss()},
                                       {"accuracy", report.score.accuracy()},
                                       {"versions", std::move(versions)}};
  return jsonText(json);
}

}  // namespace psd

#pragma once

#include <functional>
#include <string>

#include "common/status/status.h"
#include "trainer/client/client.h"
#include "trainer/dataset/dataset.h"
#include "trainer/model/model.h"

namespace psd {

/// Scores the model, with the values it has, on the whole data set. checkFit() holds.
Result<Score> evaluate(Model& model, const Dataset& dataset);

/// Scores the model on the whole data set with parameters that were pulled. Where they or the loss are not
/// finite there is no score (nonFinite).
Result<Score> evaluatePulled(Model& model, const Dataset& dataset);

/// What a daemon's model is worth. A value type.
struct EvalReport {
  std::string model;
  std::string data;               ///< for people
  std::vector<Version> versions;  ///< per shard, of the values that were scored
  Score score;
};

/// Reads the daemon's values into `model` without being a trainer, and scores them. checkFit() holds.
Result<EvalReport> evaluateServer(Client& client, Model& model, const Dataset& dataset);

/// "loss 0.0812, accuracy 97.50 % on 1000 images from DIR"
std::string formatScore(const Score& score, const std::string& data);
/// {"model":…,"data":…,"samples":…,"loss":…,"accuracy":…,"versions":[…]}; accuracy from 0 to 1.
std::string formatJson(const EvalReport& report);

}  // namespace psd

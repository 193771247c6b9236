#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/status/status.h"
#include "trainer/client/api/client.h"
#include "trainer/dataset/dataset.h"
#include "trainer/model/model.h"

namespace psd {

/// Called between two batches; true ends the evaluation (interrupted).
using ShouldStop = std::function<bool()>;

/// Scores a model on a whole data set. pull() fetches the parameters and the rows of the data set's samples;
/// score() needs no daemon. Owned by one thread, like model and data set, which outlive it. Requires
/// checkFit().
class Evaluation {
 public:
  /// Large enough to be fast; about 100 MB in the convolutional network.
  static constexpr size_t kBatchSize = 256;

  /// `batchSize`: samples scored at a time.
  Evaluation(Model& model, const Dataset& dataset, size_t batchSize = kBatchSize)
      : model_(model), dataset_(dataset), batchSize_(batchSize) {}

  /// Pulls the daemon's current values. `client` has joined or observes.
  Result<PullInfo> pull(Client& client);
  /// An error (nonFinite) if a value or the loss is not finite.
  Result<Score> score(const ShouldStop& shouldStop = {});

 private:
  /// Fills batch_ with the samples of batch `number`, from 0.
  Status fillBatch(size_t number);
  size_t batchCount() const;
  Status makeRows(Client& client);
  Result<Score> scoreAll(const ShouldStop& shouldStop);

  Model& model_;
  const Dataset& dataset_;
  const size_t batchSize_;
  Batch batch_;
  std::optional<RowBatch> rows_;                 ///< of all samples; nullopt: the model has no tables
  std::vector<std::vector<RowLookup>> lookups_;  ///< of each batch
};

/// The score of a daemon's model. A value type.
struct EvalReport {
  std::string model;
  std::string data;               ///< human-readable
  std::vector<Version> versions;  ///< per shard, of the scored values
  Score score;
};

/// Pulls the daemon's values into `model` as an observer and scores them. Requires checkFit().
Result<EvalReport> evaluateServer(Client& client, Model& model, const Dataset& dataset);
/// Like evaluateServer(), with a client that already observes.
Result<EvalReport> evaluateObserved(Client& client, Model& model, const Dataset& dataset,
                                    const ShouldStop& shouldStop = {});

/// "loss 0.0812, accuracy 97.50 % on 1000 images from DIR"
std::string formatScore(const Score& score, const std::string& data);
/// "version 345" or, if shards differ, "versions 340 to 345"
std::string formatVersions(const std::vector<Version>& versions);
/// {"model":…,"data":…,"samples":…,"loss":…,"accuracy":…,"versions":[…]}, with a key for each metric of the
/// model; accuracy from 0 to 1; null for values that are not finite. `seconds`, if given, comes first.
std::string formatJson(const EvalReport& report, std::optional<double> seconds = {});

}  // namespace psd

#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/status/status.h"
#include "trainer/client/client.h"
#include "trainer/dataset/dataset.h"
#include "trainer/model/model.h"

namespace psd {

/// Asked between two batches; true ends the scoring (interrupted).
using ShouldStop = std::function<bool()>;

/// Scores a model on a whole data set: first brings what that takes of a daemon, parameters and the rows of
/// the data set's samples alone, then needs the daemon no more. Owned by one thread, like model and data set,
/// which outlive it. checkFit() holds.
class Evaluation {
 public:
  /// Large enough to be fast, some 100 MB in the convolutional net.
  static constexpr size_t kBatchSize = 256;

  /// `batchSize`: of samples that are scored at once.
  Evaluation(Model& model, const Dataset& dataset, size_t batchSize = kBatchSize)
      : model_(model), dataset_(dataset), batchSize_(batchSize) {}

  /// Brings the daemon's values as they are now. `client` has joined or observes.
  Result<PullInfo> pull(Client& client);
  /// Where values or the loss are not finite there is no score (nonFinite).
  Result<Score> score(const ShouldStop& shouldStop = {});

 private:
  /// Fills batch_ with samples; the number of the batch counts from 0.
  void fillBatch(size_t number);
  size_t batchCount() const;
  void makeRows(Client& client);
  Result<Score> scoreAll(const ShouldStop& shouldStop);

  Model& model_;
  const Dataset& dataset_;
  const size_t batchSize_;
  Batch batch_;
  std::optional<RowBatch> rows_;                 ///< of all samples; nothing: the model has no tables
  std::vector<std::vector<RowLookup>> lookups_;  ///< of each batch
};

/// What a daemon's model is worth. A value type.
struct EvalReport {
  std::string model;
  std::string data;               ///< for people
  std::vector<Version> versions;  ///< per shard, of the values that were scored
  Score score;
};

/// Reads the daemon's values into `model` without being a trainer, and scores them. checkFit() holds.
Result<EvalReport> evaluateServer(Client& client, Model& model, const Dataset& dataset);
/// Scores the daemon's values as evaluateServer() does, by a client that observes already.
Result<EvalReport> evaluateObserved(Client& client, Model& model, const Dataset& dataset,
                                    const ShouldStop& shouldStop = {});

/// "loss 0.0812, accuracy 97.50 % on 1000 images from DIR"
std::string formatScore(const Score& score, const std::string& data);
/// "version 345" or, where shards differ, "versions 340 to 345"
std::string formatVersions(const std::vector<Version>& versions);
/// {"model":…,"data":…,"samples":…,"loss":…,"accuracy":…,"versions":[…]}, with a key for each metric of the
/// model; accuracy from 0 to 1; null for what is not finite. With `seconds`, that comes first.
std::string formatJson(const EvalReport& report, std::optional<double> seconds = {});

}  // namespace psd

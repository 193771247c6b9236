#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "server/checkpoint/log_format.h"
#include "server/checkpoint/replay.h"

namespace psd {

/// Measures how far each update of a log moved each tensor: the Euclidean norm of the update's change to it.
/// Keeps the few largest moves of each tensor, and sums. Ignores rows of embedding tables. Owned by one
/// thread.
class Blame final : public ReplayWatcher {
 public:
  explicit Blame(const ParameterStore& store);

  void before(uint32_t shard, std::span<const float> weights) override;
  void after(const LogRecord& update, uint64_t version, std::span<const float> weights) override;

  /// One JSON document; docs/guides/backup_and_restore.md lists the fields.
  std::string json() const;

 private:
  struct Source {
    uint32_t rank = 0;
    uint64_t step = 0, staleness = 0;
  };
  struct Move {
    double distance = 0;
    uint32_t shard = 0;
    uint64_t update = 0;   // sequence number of the update in its shard, from the log
    uint64_t version = 0;  // version of the shard that the update produced in this replay
    std::vector<Source> sources;
  };
  struct Sum {
    uint64_t updates = 0;
    double distance = 0;
  };
  struct Tensor {
    std::vector<Move> largest;                    // descending
    std::map<std::vector<uint32_t>, Sum> byRank;  // by the ranks whose pushes the update combines
  };
  static void keep(Tensor& tensor, double distance, const LogRecord& update, uint64_t version);

  const ModelSpec& model_;
  const ModelLayout layout_;
  std::vector<ShardRange> ranges_;  // by shard
  std::vector<Tensor> tensors_;
  std::vector<float> before_;  // weights of the shard before the update
  uint64_t updates_ = 0;
};

}  // namespace psd

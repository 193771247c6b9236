#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "server/checkpoint/checkpoint_folder.h"
#include "server/store/parameter_store.h"
#include "server/store/rows/row_snapshot.h"

namespace psd {

/// Brings the rows of a row shard, as they were at one version, into a checkpoint while updates go on: the
/// shard's lock is held for some thousand rows at a time. Where updates put aside more than kHeldBytesMax
/// before the rows are read, it is held until less is left. Owned by the checkpointer's thread.
class RowsCopy {
 public:
  static constexpr uint64_t kHeldBytesMax = uint64_t{256} << 20;
  static constexpr uint64_t kFileBytes = uint64_t{64} << 20;  ///< of a file, about

  /// With the shard's lock held. `live`, `since`: see RowSnapshot. `evicted`: see RowTurnover::takeEvicted().
  RowsCopy(RowShard& shard, bool live, std::optional<EarlierRows> since = {},
           std::vector<std::vector<uint64_t>> evicted = {});
  ~RowsCopy();

  /// Writes the next rows, a file of them. False: all have been written. `pauseSeconds` becomes the longest
  /// that an update waited, if that is more. Blocks.
  Result<bool> writeSome(CheckpointWriter& writer, const ParameterStore& store, ManifestRowShard& entry,
                         double& pauseSeconds);

 private:
  /// The pieces that go into one file.
  struct Batch {
    std::vector<RowPiece> pieces;
    uint64_t bytes = 0;
  };
  /// Reads on with the lock held. False: nothing is left.
  Result<bool> read(Batch& batch, CheckpointWriter& writer, const ParameterStore& store,
                    ManifestRowShard& entry);
  Status flush(Batch& batch, CheckpointWriter& writer, const ParameterStore& store, ManifestRowShard& entry);

  RowShard& shard_;
  std::unique_ptr<RowSnapshot> snapshot_;  // made and ended with the lock held
  std::vector<BesideRows> beside_;         // for the first file
};

}  // namespace psd

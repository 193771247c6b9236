#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "server/checkpoint/checkpoint_folder.h"
#include "server/store/parameter_store.h"
#include "server/store/rows/row_snapshot.h"

namespace psd {

/// Writes a consistent copy of a row shard's rows, as of one version, into a checkpoint while updates
/// continue. Holds the shard's lock for a few thousand rows at a time. If updates preserve more than
/// kHeldBytesMax of not yet copied rows, keeps the lock until less is left. Owned by the checkpointer's
/// thread.
class RowsCopy {
 public:
  static constexpr uint64_t kHeldBytesMax = uint64_t{256} << 20;
  static constexpr uint64_t kFileBytes = uint64_t{64} << 20;  ///< approximate size of a file

  /// Called with the shard's lock held. `live`, `since`: see RowSnapshot. `evicted`: see
  /// RowTurnover::takeEvicted().
  RowsCopy(RowShard& shard, bool live, std::optional<BaseSnapshot> since = {},
           std::vector<std::vector<uint64_t>> evicted = {});
  ~RowsCopy();

  /// Writes the next file of rows. False: all rows have been written. Raises `pauseSeconds` to the longest
  /// time that an update waited. Blocks.
  Result<bool> writeSome(CheckpointWriter& writer, const ParameterStore& store, ManifestRowShard& entry,
                         double& pauseSeconds);

 private:
  /// The pieces of one file.
  struct Batch {
    std::vector<RowPiece> pieces;
    uint64_t bytes = 0;
  };
  /// Reads more rows with the lock held. False: none are left.
  Result<bool> read(Batch& batch, CheckpointWriter& writer, const ParameterStore& store,
                    ManifestRowShard& entry);
  Status flush(Batch& batch, CheckpointWriter& writer, const ParameterStore& store, ManifestRowShard& entry);

  RowShard& shard_;
  std::unique_ptr<RowSnapshot> snapshot_;  // created and destroyed with the lock held
  std::vector<TableExtras> extras_;        // written to the first file
};

}  // namespace psd

#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "common/os/env.h"
#include "server/checkpoint/manifest.h"
#include "server/store/rows/row_snapshot.h"

namespace psd {

/// Checkpoints lie in one folder, each in a folder of its own, named by its number. A folder without a
/// manifest was not finished, or was being removed: it is no checkpoint.

/// Makes a folder, with missing folders above it, so that a crash does not take it away again.
Status makeLastingFolder(Env& env, const std::string& folder);

/// "FOLDER/checkpoint-0000000012"
std::string checkpointPath(const std::string& folder, uint64_t number);

/// The numbers of the checkpoints' folders in `folder`, rising. `finished`: only folders with a manifest.
Result<std::vector<uint64_t>> listCheckpoints(Env& env, const std::string& folder, bool finished);

/// Removes all checkpoints but the `keep` newest with those that they go on from, and everything unfinished
/// that is older than the newest finished one. `damaged`: numbers of checkpoints that cannot be used. These
/// do not count among the `keep`, and go once they are older than the kept ones. `pinned`: numbers that stay
/// whatever their age, with those that they go on from. Gives the oldest number that is kept, be it for
/// others that go on from it; 0 for none. A folder that cannot be removed does not keep others from being
/// removed; the first error is returned.
Result<uint64_t> pruneCheckpoints(Env& env, const std::string& folder, uint64_t keep,
                                  const std::set<uint64_t>& damaged = {},
                                  const std::set<uint64_t>& pinned = {});

/// Removes all checkpoints that were not finished, as far as that is possible: the disk may need the room.
/// For who holds the folder, and writes none.
void removeUnfinished(Env& env, const std::string& folder);

/// Removes all checkpoints. For who holds the folder, and writes none.
Status removeCheckpoints(Env& env, const std::string& folder);

/// Writes one checkpoint. Until finish() has returned success there is none, whatever happens; what was begun
/// is removed later by pruneCheckpoints() or removeUnfinished(). Blocks. Owned by one thread.
class CheckpointWriter {
 public:
  /// The values of a shard under one name: the weights, or a slot of the optimizer.
  struct Plane {
    std::string name;
    std::span<const float> values;
  };

  /// Makes the folder of checkpoint `number`, which must be new.
  static Result<CheckpointWriter> begin(Env& env, const std::string& folder, uint64_t number);

  /// Writes a shard's file and fills in `shard.file`, `bytes` and `crc`.
  Status addShard(ManifestShard& shard, std::span<const Plane> planes);
  /// Writes one more file of a row shard, with the rows of the pieces, of which each has a table of its own
  /// or the same as the one before, and with what tables have beside their rows; adds it to `shard.files`.
  Status addRows(ManifestRowShard& shard, const ModelSpec& model, const Optimizer& optimizer,
                 std::span<const RowPiece> pieces, std::span<const BesideRows> besides = {});
  /// Finishes the checkpoint by writing its manifest. `manifest.number` is set here.
  Status finish(Manifest manifest);

  const std::string& path() const { return path_; }
  /// What a checkpoint that goes on from this one, finished, names it by.
  ManifestBase asBase() const { return {number_, manifestCrc_}; }
  uint64_t bytesWritten() const { return bytes_; }

 private:
  /// Writes a file by `write`, and sums it up in `entry`.
  Status addFile(ManifestFile& entry, const std::function<Status(WritableFile&)>& write);
  CheckpointWriter(Env& env, std::string path, uint64_t number)
      : env_(&env), path_(std::move(path)), number_(number) {}
  Env* env_;
  std::string path_;
  uint64_t number_;
  uint64_t bytes_ = 0;
  uint32_t manifestCrc_ = 0;
};

/// The name of a shard's weights in its file; slots have the optimizer's names.
inline constexpr std::string_view kWeightsPlane = "weights";

/// The names, in a file of rows, of the planes of RowLayout, in their order. Before each stands rowsPrefix(),
/// as before "keys", the rows' ids, and "meta", their RowMeta.
std::vector<std::string> rowPlaneNames(const Optimizer& optimizer);
std::string rowsPrefix(std::string_view table, size_t piece);

/// What stands behind a table's name for what a file holds beside its rows: the ids that were evicted since
/// the base, what an admission filter has counted, and that filter's terms.
inline constexpr std::string_view kEvictedTensor = "/evicted", kCountsTensor = "/counts",
                                  kCountTermsTensor = "/count_terms";

/// A checkpoint whose files are all there and have the checksums that its manifest gives. A value type.
struct Checkpoint {
  std::string path;
  Manifest manifest;
  std::vector<Checkpoint> bases = {};  ///< those that it goes on from, each from the one before
};

/// A checkpoint of a partition of a model, which is somebody else's, and where in the whole model's layout
/// that partition begins.
struct PlacedCheckpoint {
  const Checkpoint* checkpoint;
  uint64_t begin = 0;
};

/// Reads the manifest alone.
Result<Manifest> readManifest(Env& env, const std::string& path);
/// CRC-32C of the whole file of a manifest, by which others name its checkpoint.
Result<uint32_t> manifestCrc(Env& env, const std::string& path);

/// Reads the manifest and every byte of the other files, and those of the checkpoints that it goes on from.
/// The error names the file at fault.
Result<Checkpoint> openCheckpoint(Env& env, const std::string& path);

/// The newest whole checkpoint in a folder, if there is one. Damaged ones that are newer are told of in
/// `damaged`, newest first. One that cannot be read is an Error: it may be whole. A folder that is not there
/// holds none.
struct NewestCheckpoint {
  struct Damaged {
    uint64_t number = 0;
    Error why;
  };
  std::optional<Checkpoint> checkpoint;
  std::vector<Damaged> damaged;
};
Result<NewestCheckpoint> newestCheckpoint(Env& env, const std::string& folder);

}  // namespace psd

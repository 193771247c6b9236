#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "common/os/env.h"
#include "common/safetensors/buffer_set.h"
#include "server/checkpoint/manifest.h"
#include "server/store/rows/row_snapshot.h"

namespace psd {

/// All checkpoints lie in one folder, each in its own subfolder, named by its number. A subfolder without a
/// manifest is an unfinished or half-removed checkpoint and is not counted as one.

/// Creates a folder and its missing parents durably: they survive a crash.
Status createFolderDurably(Env& env, const std::string& folder);

/// "FOLDER/checkpoint-0000000012"
std::string checkpointPath(const std::string& folder, uint64_t number);

/// The numbers of the checkpoints in `folder`, ascending. `finished`: only those that have a manifest.
Result<std::vector<uint64_t>> listCheckpoints(Env& env, const std::string& folder, bool finished);

/// Removes all checkpoints except the `keep` newest and their bases, and every unfinished checkpoint that is
/// older than the newest finished one. `damaged`: numbers of unusable checkpoints; they do not count toward
/// `keep` and are removed once they are older than the kept ones. `pinned`: numbers that are kept regardless
/// of age, with their bases. Returns the oldest number kept, including bases; 0 for none. If a folder cannot
/// be removed, the others are removed all the same, and the first error is returned.
Result<uint64_t> pruneCheckpoints(Env& env, const std::string& folder, uint64_t keep,
                                  const std::set<uint64_t>& damaged = {},
                                  const std::set<uint64_t>& pinned = {});

/// Removes all unfinished checkpoints, best effort, to free disk space. The caller holds the folder and is
/// not writing a checkpoint.
void removeUnfinished(Env& env, const std::string& folder);

/// Removes all checkpoints. The caller holds the folder and is not writing a checkpoint.
Status removeCheckpoints(Env& env, const std::string& folder);

/// Writes one checkpoint. The checkpoint does not exist until finish() returns success; pruneCheckpoints()
/// and removeUnfinished() clean up an unfinished one. Blocks. Owned by one thread.
class CheckpointWriter {
 public:
  /// The values of a shard under one name: the weights, or one optimizer slot.
  struct Plane {
    std::string name;
    std::span<const float> values;
  };

  /// Creates the folder of checkpoint `number`, which must not exist.
  static Result<CheckpointWriter> begin(Env& env, const std::string& folder, uint64_t number);

  /// Writes a shard's file and fills in `shard.file`, `bytes` and `crc`.
  Status addShard(ManifestShard& shard, std::span<const Plane> planes);
  /// Writes one more file of a row shard and adds it to `shard.files`. The file holds the rows of `pieces`,
  /// which are ordered by table, and the tables' other row state, `besides`.
  Status addRows(ManifestRowShard& shard, const ModelSpec& model, const Optimizer& optimizer,
                 std::span<const RowPiece> pieces, std::span<const TableExtras> besides = {});
  /// Writes the file of the model's buffers and adds it to the manifest; nothing if there are none.
  Status addBuffers(Manifest& manifest, const BufferSet* buffers);
  /// Writes the manifest, which completes the checkpoint. Sets `manifest.number`.
  Status finish(Manifest manifest);

  const std::string& path() const { return path_; }
  /// The reference to this checkpoint, once finished, as the base of an incremental one.
  ManifestBase asBase() const { return {number_, manifestCrc_}; }
  uint64_t bytesWritten() const { return bytes_; }

 private:
  /// Writes a file with `write`, and fills in `entry`.
  Status addFile(ManifestFile& entry, const std::function<Status(WritableFile&)>& write);
  CheckpointWriter(Env& env, std::string path, uint64_t number)
      : env_(&env), path_(std::move(path)), number_(number) {}
  Env* env_;
  std::string path_;
  uint64_t number_;
  uint64_t bytes_ = 0;
  uint32_t manifestCrc_ = 0;
};

/// The name of a shard's weights in its file; optimizer slots have the optimizer's names.
inline constexpr std::string_view kWeightsPlane = "weights";

/// The names of RowLayout's planes in a file of rows, in their order. Every name is prefixed with
/// rowsPrefix(), as are "keys", the row ids, and "meta", their RowMeta.
std::vector<std::string> rowPlaneNames(const Optimizer& optimizer);
std::string rowsPrefix(std::string_view table, size_t piece);

/// Suffixes to a table's name for what a file holds besides rows: the ids evicted since the base, the counts
/// of an admission filter, and that filter's parameters.
inline constexpr std::string_view kEvictedTensor = "/evicted", kCountsTensor = "/counts",
                                  kCountTermsTensor = "/count_terms";

/// A verified checkpoint: all files exist and match the checksums in the manifest. A value type.
struct Checkpoint {
  std::string path;
  Manifest manifest;
  std::vector<Checkpoint> bases = {};  ///< the chain of its bases, each one the base of the previous
};

/// A borrowed checkpoint of a model partition, and the partition's offset in the layout of the whole model.
struct PlacedCheckpoint {
  const Checkpoint* checkpoint;
  uint64_t begin = 0;
};

/// The buffers of a checkpoint; null if it has none.
Result<std::shared_ptr<const BufferSet>> readBuffers(Env& env, const Checkpoint& checkpoint);

/// Reads only the manifest.
Result<Manifest> readManifest(Env& env, const std::string& path);
/// CRC-32C of the whole manifest file, by which other files refer to the checkpoint.
Result<uint32_t> manifestCrc(Env& env, const std::string& path);

/// Reads the manifest and every byte of the other files, and those of the checkpoint's bases. The error names
/// the bad file.
Result<Checkpoint> openCheckpoint(Env& env, const std::string& path);

/// The newest intact checkpoint in a folder, if any. `damaged` lists the newer, damaged ones, newest first. A
/// checkpoint that cannot be read is an Error, since it may be intact. A missing folder holds no checkpoint.
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

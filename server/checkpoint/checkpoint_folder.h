#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "common/os/env.h"
#include "server/checkpoint/manifest.h"

namespace psd {

/// Checkpoints lie in one folder, each in a folder of its own, named by its number. A folder without a
/// manifest was not finished, or was being removed: it is no checkpoint.

/// Makes a folder, with missing folders above it, so that a crash does not take it away again.
Status makeLastingFolder(Env& env, const std::string& folder);

/// "FOLDER/checkpoint-0000000012"
std::string checkpointPath(const std::string& folder, uint64_t number);

/// The numbers of the checkpoints' folders in `folder`, rising. `finished`: only folders with a manifest.
Result<std::vector<uint64_t>> listCheckpoints(Env& env, const std::string& folder, bool finished);

/// Removes all checkpoints but the `keep` newest, and everything unfinished that is older than the newest
/// finished one. `damaged`: numbers of checkpoints that cannot be used. These do not count among the `keep`,
/// and go once they are older than the kept ones. Gives the oldest number that is kept, 0 for none. A folder
/// that cannot be removed does not keep others from being removed; the first error is returned.
Result<uint64_t> pruneCheckpoints(Env& env, const std::string& folder, uint64_t keep,
                                  const std::set<uint64_t>& damaged = {});

/// Removes all checkpoints that were not finished, as far as that is possible: the disk may need the room.
/// For who holds the folder, and writes none.
void removeUnfinished(Env& env, const std::string& folder);

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
  /// Finishes the checkpoint by writing its manifest. `manifest.number` is set here.
  Status finish(Manifest manifest);

  const std::string& path() const { return path_; }
  uint64_t bytesWritten() const { return bytes_; }

 private:
  CheckpointWriter(Env& env, std::string path, uint64_t number)
      : env_(&env), path_(std::move(path)), number_(number) {}
  Env* env_;
  std::string path_;
  uint64_t number_;
  uint64_t bytes_ = 0;
};

/// The name of a shard's weights in its file; slots have the optimizer's names.
inline constexpr std::string_view kWeightsPlane = "weights";

/// A checkpoint whose files are all there and have the checksums that its manifest gives. A value type.
struct Checkpoint {
  std::string path;
  Manifest manifest;
};

/// Reads the manifest alone.
Result<Manifest> readManifest(Env& env, const std::string& path);

/// Reads the manifest and every byte of the other files. The error names the file at fault.
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

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/plan/shard_plan.h"
#include "common/status/status.h"
#include "common/types/model_spec.h"
#include "server/membership/sample_plan.h"
#include "server/optimizer/optimizer.h"
#include "server/store/pushed_ranges.h"

namespace psd {

inline constexpr uint64_t kCheckpointFormat = 1;
inline constexpr std::string_view kManifestName = "manifest.json";

/// Consistency of a checkpoint's values as a set; later enumerators are stronger.
enum class Consistency {
  live,      ///< read while updates ran: values of different versions mix
  perShard,  ///< each shard is consistent as of some version
  perGroup,  ///< all shards of a parameter group are consistent between two of the group's updates
};
std::string_view consistencyName(Consistency consistency);

/// One parameter group: its policy, and the optimizer whose state the files hold.
struct ManifestGroup {
  std::string policy;  ///< policy.type
  Optimizer optimizer;
};

/// A file of a checkpoint.
struct ManifestFile {
  std::string file;  ///< in the checkpoint's folder
  uint64_t bytes = 0;
  uint32_t crc = 0;  ///< CRC-32C of the whole file
};

/// Common fields of all parameter blocks.
struct ManifestBlock {
  ShardRange range;
  Version version;
  Version stateSince;   ///< ParameterBlock::stateSince()
  Version oldestBasis;  ///< ParameterBlock::oldestBasis()
  PushedRanges pushed;
};

/// One shard and its file.
struct ManifestShard : ManifestBlock, ManifestFile {};

/// The checkpoint that an incremental one is based on.
struct ManifestBase {
  uint64_t number = 0;
  uint32_t crc = 0;  ///< CRC-32C of its manifest.json
};

/// One row shard and its files, ordered by table and then by id hash. Its range is in units of kRowHashUnits.
struct ManifestRowShard : ManifestBlock {
  std::vector<uint32_t> tables;  ///< indices into the model's tables
  uint64_t rows = 0;             ///< number of rows in its files
  /// If set, the files hold only what changed since the row shard had this version, which is the base's;
  /// otherwise they hold all rows.
  std::optional<Version> since;
  std::vector<ManifestFile> files;
};

/// The contents of manifest.json, which docs/reference/checkpoint_format.md describes byte by byte. A value
/// type.
struct Manifest {
  uint64_t number = 0;               ///< rises with every checkpoint in a folder
  std::string created;               ///< UTC, "2026-11-21T16:03:00Z"
  std::optional<ManifestBase> base;  ///< base of the incremental row shards
  Consistency consistency = Consistency::perShard;
  uint64_t logSegment = 0;  ///< first log segment that may hold updates missing here; 0: no log
  uint64_t logHistory = 0;  ///< history of the log segments that continue from here
  ModelSpec model;
  std::vector<ManifestGroup> groups;
  std::vector<ManifestShard> shards;
  std::vector<ManifestRowShard> rowShards;  ///< numbered after the shards
  std::vector<bool> rowSteps;               ///< StoreGroups::rowSteps, per table of the model
  std::optional<ManifestFile> buffers;      ///< a safetensors file; nullopt: the model has none
  std::optional<SavedSamples> samples;      ///< done are only samples whose push every shard has
};

/// The current time in the format of Manifest::created.
std::string utcNow();

/// All blocks by number; pointers into `manifest`.
std::vector<const ManifestBlock*> blocksOf(const Manifest& manifest);
ManifestBlock& blockOf(Manifest& manifest, size_t index);
/// All files except the manifest itself.
std::vector<const ManifestFile*> filesOf(const Manifest& manifest);

/// The file's text, with its own checksum in the last line.
std::string formatManifest(const Manifest& manifest);
/// Validates everything that can be checked without the other files. Errors name `origin` and the key.
Result<Manifest> parseManifest(std::string_view text, const std::string& origin);

}  // namespace psd

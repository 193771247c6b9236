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

/// What a checkpoint's values are together; the later in this list, the better.
enum class Consistency {
  live,      ///< read while updates ran: values of several versions side by side
  perShard,  ///< each shard as it was between two updates
  perGroup,  ///< all shards of a parameter group as they were between two updates of them all
};
std::string_view consistencyName(Consistency consistency);

/// One parameter group: who ruled it, and the optimizer whose state the files hold.
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

/// What every block of parameters has.
struct ManifestBlock {
  ShardRange range;
  Version version;
  Version stateBegan;  ///< ParameterBlock::stateBegan()
  PushedRanges pushed;
};

/// One shard and its file.
struct ManifestShard : ManifestBlock, ManifestFile {};

/// The checkpoint that another one goes on from.
struct ManifestBase {
  uint64_t number = 0;
  uint32_t crc = 0;  ///< CRC-32C of its manifest.json
};

/// One row shard and its files, in the order of the tables and then of the hashes. Its range is in units of
/// kRowHashUnits.
struct ManifestRowShard : ManifestBlock {
  std::vector<uint32_t> tables;  ///< indices into the model's
  uint64_t rows = 0;             ///< in its files
  /// Where the files hold only what changed in the row shard since it had this version, that of the base;
  /// nothing: they hold all rows.
  std::optional<Version> since;
  std::vector<ManifestFile> files;
};

/// The contents of manifest.json, which docs/checkpoint_format.md describes byte by byte. A value type.
struct Manifest {
  uint64_t number = 0;               ///< rises with every checkpoint of a folder
  std::string created;               ///< UTC, "2026-11-21T16:03:00Z"
  std::optional<ManifestBase> base;  ///< what some of the row shards go on from
  Consistency consistency = Consistency::perShard;
  uint64_t logSegment = 0;  ///< first segment of the log with updates that may be missing here; 0: no log
  uint64_t logHistory = 0;  ///< of the log's segments that go on from here
  ModelSpec model;
  std::vector<ManifestGroup> groups;
  std::vector<ManifestShard> shards;
  std::vector<ManifestRowShard> rowShards;  ///< their numbers go on after those of the shards
  std::vector<bool> rowSteps;               ///< StoreGroups::rowSteps, per table of the model
  std::optional<SavedSamples> samples;      ///< where they are dealt: done are none that the shards lack
};

/// The time now, as Manifest::created has it.
std::string utcNow();

/// All blocks in the order of their numbers; they are the manifest's.
std::vector<const ManifestBlock*> blocksOf(const Manifest& manifest);
ManifestBlock& blockOf(Manifest& manifest, size_t index);
/// All files but the manifest itself.
std::vector<const ManifestFile*> filesOf(const Manifest& manifest);

/// The file's text, its own checksum in the last line.
std::string formatManifest(const Manifest& manifest);
/// Checks everything that can be checked without the other files. Errors name `origin` and the place.
Result<Manifest> parseManifest(std::string_view text, const std::string& origin);

}  // namespace psd

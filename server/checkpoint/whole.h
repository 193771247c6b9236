#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/os/env.h"
#include "common/types/model_spec.h"

namespace psd {

inline constexpr std::string_view kWholeName = "whole.json";

/// A checkpoint of one of a model's daemons.
struct CheckpointRef {
  uint64_t number = 0;
  uint64_t version = 0;  ///< of its first shard
  uint32_t crc = 0;      ///< CRC-32C of its manifest.json
  bool operator==(const CheckpointRef&) const = default;
};

/// A checkpoint of the whole model, composed of checkpoints of all its daemons, as stored in the file
/// kWholeName of a folder; docs/reference/checkpoint_format.md describes it. Only the one in the lead's
/// folder is authoritative. A value type.
struct WholeCheckpoint {
  std::string created;               ///< UTC, as Manifest::created
  std::vector<CheckpointRef> parts;  ///< by partition number
  std::vector<uint64_t> before;      ///< numbers of the previous one's parts, by partition; empty: none
  bool operator==(const WholeCheckpoint&) const = default;
};

/// A daemon's report of its newest checkpoint.
struct NewestPart {
  Partition partition;
  CheckpointRef ref;
  bool logged = false;                   ///< a log continues from it
  std::optional<WholeCheckpoint> whole;  ///< the one that its folder names
};

/// The file's text, with its own checksum in the last line.
std::string formatWhole(const WholeCheckpoint& whole);
/// Errors name `origin` and the problem.
Result<WholeCheckpoint> parseWhole(std::string_view text, const std::string& origin);

/// Reads the file kWholeName of a folder; nullopt if it does not exist. Blocks.
Result<std::optional<WholeCheckpoint>> readWhole(Env& env, const std::string& folder);
/// Writes the file atomically and durably. Blocks.
Status writeWhole(Env& env, const std::string& folder, const WholeCheckpoint& whole);

}  // namespace psd

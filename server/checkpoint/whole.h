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

/// Checkpoints of all daemons of a model that are one of the whole, as the file kWholeName of a folder holds
/// them, which docs/checkpoint_format.md describes. It counts where it is in the lead's folder. A value type.
struct WholeCheckpoint {
  std::string created;               ///< UTC, as Manifest::created
  std::vector<CheckpointRef> parts;  ///< by partition
  std::vector<uint64_t> before;      ///< numbers of the one before, by partition; empty: there was none
  bool operator==(const WholeCheckpoint&) const = default;
};

/// What a daemon tells of its newest checkpoint.
struct NewestPart {
  Partition partition;
  CheckpointRef ref;
  bool logged = false;                   ///< a log goes on from it
  std::optional<WholeCheckpoint> whole;  ///< what its folder names
};

/// The file's text, its own checksum in the last line.
std::string formatWhole(const WholeCheckpoint& whole);
/// The error names `origin` and what is wrong.
Result<WholeCheckpoint> parseWhole(std::string_view text, const std::string& origin);

/// Reads the file kWholeName of a folder; nothing where there is none. Blocks.
Result<std::optional<WholeCheckpoint>> readWhole(Env& env, const std::string& folder);
/// Writes it, atomically and so that it outlasts a crash. Blocks.
Status writeWhole(Env& env, const std::string& folder, const WholeCheckpoint& whole);

}  // namespace psd

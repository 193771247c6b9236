#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/config/object_reader.h"

namespace psd {

/// How much of a model survives the daemon, and how: `durability` in the configuration. A value type.
struct DurabilityConfig {
  enum class Type { none, checkpoint, log };
  Type type = Type::none;
  std::string path;           ///< folder of the checkpoints
  double everySeconds = 60;   ///< 0: not by time
  uint64_t everyUpdates = 0;  ///< of a shard on average; 0: not by their number
  uint64_t keep = 3;          ///< checkpoints
  uint64_t fullEvery = 1;     ///< checkpoint that holds all rows of tables; those between hold what changed
  /// Of the log since the last checkpoint; 0: not by bytes; nothing: by the checkpoint's size.
  std::optional<uint64_t> everyBytes;
  std::string resume = "auto";  ///< "auto", "none" or the path of a checkpoint or of a folder with some

  uint64_t segmentBytes = 256ull << 20;  ///< of the log; a new segment begins after so many

  bool enabled() const { return type != Type::none; }
};

std::string_view durabilityName(DurabilityConfig::Type type);

/// Reads {"type": …, options…}; problems go to the reader.
DurabilityConfig readDurability(ObjectReader in);

}  // namespace psd

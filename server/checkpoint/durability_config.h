#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/config/object_reader.h"

namespace psd {

/// Whether and how a model outlives the daemon: `durability` in the configuration. A value type.
struct DurabilityConfig {
  enum class Type { none, checkpoint, log };
  Type type = Type::none;
  std::string path;           ///< folder of the checkpoints and the log
  double everySeconds = 60;   ///< 0: disabled
  uint64_t everyUpdates = 0;  ///< per shard, on average; 0: disabled
  uint64_t keep = 3;          ///< number of checkpoints
  uint64_t fullEvery = 1;     ///< every n-th checkpoint is full; the others hold only the changed rows
  /// Bytes of log since the last checkpoint; 0: disabled; nullopt: derived from the checkpoint size.
  std::optional<uint64_t> everyBytes;
  std::string resume = "auto";  ///< "auto", "none", or the path of a checkpoint or of a folder of checkpoints

  uint64_t segmentBytes = 256ull << 20;  ///< size of a log segment at which the next one starts

  bool enabled() const { return type != Type::none; }
};

std::string_view durabilityName(DurabilityConfig::Type type);

/// Reads {"type": …, options…}; reports problems to the reader.
DurabilityConfig readDurability(ObjectReader in);

}  // namespace psd

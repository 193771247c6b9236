#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/config/config_reader.h"

namespace psd {

/// Whether and how a model outlives the daemon; readDurability() documents each field. A value type.
struct DurabilityConfig {
  enum class Type { none, checkpoint, log };
  Type type = Type::none;
  std::string path;
  double everySeconds = 60;
  uint64_t everyUpdates = 0;
  uint64_t keep = 3;
  uint64_t fullEvery = 1;
  std::optional<uint64_t> everyBytes;  ///< nullopt: derived from the checkpoint size ("auto")
  std::string resume = "auto";
  uint64_t segmentBytes = 256ull << 20;

  bool enabled() const { return type != Type::none; }
};

std::string_view durabilityName(DurabilityConfig::Type type);

/// Reads the key `durability`.
DurabilityConfig readDurability(ConfigReader in);

}  // namespace psd

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/config/config_reader.h"
#include "common/types/model_spec.h"

namespace psd {

/// Whether and when versions are published; readPublish() documents each field. A value type.
struct PublishConfig {
  enum class From { training, publishers };

  From from = From::training;
  // From training:
  double everySeconds = 0;
  uint64_t everyUpdates = 0;
  std::optional<DType> as;  ///< nullopt: each tensor's own dtype ("model")
  // From publishers:
  std::string path;  ///< empty: in memory
  uint32_t partsTimeoutSeconds = 60;
  // Of both:
  uint64_t keep = 4;
};

/// "training" or "publishers".
std::string_view publishFromName(PublishConfig::From from);

/// Reads the key `publish`.
PublishConfig readPublish(ConfigReader in);

}  // namespace psd

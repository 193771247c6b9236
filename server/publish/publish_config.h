#pragma once

#include <cstdint>
#include <optional>

#include "common/config/config_reader.h"
#include "common/types/model_spec.h"

namespace psd {

/// Whether and when versions of the model are published; readPublish() documents each field. A value type.
struct PublishConfig {
  double everySeconds = 0;
  uint64_t everyUpdates = 0;
  std::optional<DType> as;  ///< nullopt: each tensor's own dtype ("model")
  uint64_t keep = 4;
};

/// Reads the key `publish`.
PublishConfig readPublish(ConfigReader in);

}  // namespace psd

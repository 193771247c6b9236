#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/auth/credentials.h"
#include "common/config/config_reader.h"
#include "common/os/address.h"
#include "common/types/model_spec.h"

namespace psd {

/// Whether and when versions are published; readPublish() documents each field. A value type.
struct PublishConfig {
  enum class From { training, publishers, upstream };

  From from = From::training;
  // From training:
  double everySeconds = 0;
  uint64_t everyUpdates = 0;
  std::optional<DType> as;  ///< nullopt: each tensor's own dtype ("model")
  // From publishers or upstream:
  std::string path;  ///< empty: in memory
  // From publishers:
  uint32_t partsTimeoutSeconds = 60;
  // From upstream:
  std::vector<Address> upstream;  ///< of daemons that have the versions, at least one
  CredentialFlags credentials;
  // Of all:
  uint64_t keep = 4;
};

/// "training", "publishers" or "upstream".
std::string_view publishFromName(PublishConfig::From from);

/// Reads the key `publish`.
PublishConfig readPublish(ConfigReader in);

}  // namespace psd

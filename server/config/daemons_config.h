#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/config/config_reader.h"
#include "common/os/address.h"
#include "common/types/model_spec.h"

namespace psd {

/// The daemons that serve a model together, each a partition of it. A value type.
struct DaemonsConfig {
  /// By partition: the addresses at which trainers reach its daemon or the standby, the first that answers;
  /// empty: this daemon serves its model alone.
  std::vector<std::vector<Address>> addresses;
  uint32_t index = 0;  ///< the partition of this daemon
  std::string rules;   ///< see rulesText(); empty: this daemon serves its model alone

  /// The addresses as in the configuration.
  std::vector<std::string> texts() const;
  bool several() const { return addresses.size() > 1; }
  Partition partition() const {
    return several() ? Partition{index, static_cast<uint32_t>(addresses.size())} : Partition();
  }
};

/// Reads the keys `daemons` and `index`.
DaemonsConfig readDaemons(ConfigReader& in);

}  // namespace psd

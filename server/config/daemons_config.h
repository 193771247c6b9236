#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/config/object_reader.h"
#include "common/os/address.h"
#include "common/types/model_spec.h"

namespace psd {

/// The daemons that serve a model together, each a partition of it. A value type.
struct DaemonsConfig {
  /// In the order of their partitions, each with the addresses at which trainers reach it or its standby, the
  /// first that answers; empty: this daemon serves its model alone.
  std::vector<std::vector<Address>> addresses;
  uint32_t index = 0;  ///< which of them this one is
  std::string rules;   ///< see rulesText(); empty: this daemon serves its model alone

  /// The addresses as the configuration has them.
  std::vector<std::string> texts() const;
  bool several() const { return addresses.size() > 1; }
  Partition partition() const {
    return several() ? Partition{index, static_cast<uint32_t>(addresses.size())} : Partition();
  }
};

/// Reads the keys `daemons` and `index`. Problems go to the reader.
DaemonsConfig readDaemons(ObjectReader& in);

}  // namespace psd

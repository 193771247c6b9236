#include "trainer/client/device_rings.h"

#include <set>

namespace psd {

std::vector<uint32_t> ClientDeviceRings::devices() const {
  const std::set<uint32_t> devices(deviceOfShard_.begin(), deviceOfShard_.end());
  return {devices.begin(), devices.end()};
}

}  // namespace psd

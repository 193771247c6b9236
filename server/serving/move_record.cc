#include "server/serving/move_record.h"

#include "common/text/text.h"

namespace psd {

std::string addressesText(const DaemonAddresses& daemons) {
  return joined(daemons, " ", [](const auto& addresses) { return joined(addresses, ","); });
}

}  // namespace psd

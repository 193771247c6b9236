#include "trainer/executor/model_location.h"

#include <algorithm>

#include <spdlog/spdlog.h>

#include "common/text/text.h"

namespace psd {

std::vector<std::string> ModelLocation::servers() const {
  const std::lock_guard hold(mutex_);
  return servers_;
}

void ModelLocation::moved(const std::vector<std::string>& from, const std::vector<std::string>& to) {
  {
    const std::lock_guard hold(mutex_);
    if (to == servers_ || !std::ranges::is_permutation(from, servers_)) return;
    servers_ = to;
  }
  spdlog::info(
      "the model has moved from {} to {}, where trainers join from now on; set `server` to that address "
      "before the executor restarts",
      joined(from, ","), joined(to, ","));
}

}  // namespace psd

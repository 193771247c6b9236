#include "server/coordination/daemon_end.h"

#include <utility>

#include <spdlog/spdlog.h>

#include "common/log/log_line.h"

namespace psd {

bool DaemonEnd::request(std::string reason, EndOf what, bool trainersIn) {
  if (requested()) {
    if (what != EndOf::run || !restarting() || toldTrainers_) return false;
    spdlog::info("the run ends with the daemon: {}", reason);
    what_ = what;
    return false;
  }
  what_ = what;
  reason_ = std::move(reason);
  logLine(spdlog::level::info, {.event = "stopping"}, "stopping: {}{}", *reason_,
          restarting() && trainersIn ? "; trainers wait for the next daemon" : "");
  return true;
}

Error DaemonEnd::error() const {
  if (restarting()) return {ErrorCode::unavailable, "the daemon restarts: " + reason_.value_or("")};
  return {ErrorCode::shuttingDown, "the daemon is shutting down: " + reason_.value_or("")};
}

void DaemonEnd::notifyTrainers() {
  toldTrainers_ = true;
  noticePair_.fulfiller->fulfill({*reason_, restarting()});
}

}  // namespace psd

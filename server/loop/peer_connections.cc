#include "server/loop/peer_connections.h"

#include <algorithm>
#include <utility>

#include <spdlog/spdlog.h>

#include "common/log/log_line.h"

namespace psd {
namespace {

constexpr auto kSweepInterval = 250 * kj::MILLISECONDS;

}  // namespace

PeerConnections::PeerConnections(kj::Timer& timer, DaemonMetrics& counters)
    : timer_(timer),
      counters_(counters),
      tasks_(kj::heap<kj::TaskSet>(static_cast<kj::TaskSet::ErrorHandler&>(*this))) {
  detach(sweep());
}

void PeerConnections::detach(kj::Promise<void> task) {
  if (tasks_.get() != nullptr) tasks_->add(kj::mv(task));
}

void PeerConnections::taskFailed(kj::Exception&& exception) {
  spdlog::debug("a background task of a connection failed: {}", exception.getDescription().cStr());
}

void PeerConnections::adopt(std::shared_ptr<PeerConnection> connection) {
  connections_.emplace(connection.get(), connection);
  connection->open();
  detach(connection->whenDisconnected().then(
      [this, connection] { drop(*connection, connection->endReason()); }));
}

void PeerConnections::drop(PeerConnection& connection, std::string reason) {
  const auto known = connections_.find(&connection);
  if (known == connections_.end()) return;
  // Off the caller's stack; by then it may have been dropped already.
  detach(kj::evalLater([this, ending = known->second, reason = std::move(reason)] {
    auto entry = connections_.find(ending.get());
    if (entry == connections_.end()) return;
    if (!reason.empty()) {
      counters_.connectionsDropped.add();
      const std::string& peer = entry->second->peer();
      logLine(spdlog::level::warn, {.event = "dropped", .peer = peer, .limited = true}, "dropped {}: {}",
              peer, reason);
    }
    entry->second->close();
    connections_.erase(entry);
    counters_.connectionsOpen.subtract();
  }));
}

void PeerConnections::disconnectTrainers() {
  for (auto& [key, connection] : connections_) {
    if (connection->trainers() != 0) drop(*connection, "");
  }
}

void PeerConnections::closeAll() {
  for (auto& [key, connection] : connections_) connection->close();
  connections_.clear();
  tasks_ = nullptr;
}

kj::Promise<void> PeerConnections::sweep() {
  return timer_.afterDelay(kSweepInterval).then([this] {
    for (auto& [key, connection] : connections_) {
      if (auto reason = connection->mustEnd()) drop(*connection, *reason);
    }
    return sweep();
  });
}

void PeerConnections::recheckAccess() {
  for (auto& [key, connection] : connections_) connection->recheckAccess();
}

bool PeerConnections::nothingQueued() const {
  return std::ranges::all_of(connections_,
                             [](const auto& entry) { return entry.second->queuedBytes() == 0; });
}

bool PeerConnections::hasTrainers() const {
  return std::ranges::any_of(connections_, [](const auto& entry) { return entry.second->trainers() != 0; });
}

bool PeerConnections::owesOutcome() const {
  return std::ranges::any_of(connections_, [](const auto& entry) { return entry.second->owesOutcome(); });
}

}  // namespace psd

#pragma once

#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace psd {

/// The addresses of the daemon that serves the model: those of the configuration, until the model moves. All
/// sessions of an executor share it, so that a move reported by one is known to all. Thread-safe.
class ModelLocation {
 public:
  /// `servers`: addresses of one daemon.
  explicit ModelLocation(std::vector<std::string> servers) : servers_(std::move(servers)) {}

  /// The addresses to connect to, of one daemon.
  std::vector<std::string> servers() const;
  /// A session reports that the model has moved from the daemon at `from` (in any order) to the one at `to`.
  /// Ignored unless `from` is the current location: a session may be late to report a move that others have
  /// reported already, along with later ones. Logs a line if the location changes.
  void moved(const std::vector<std::string>& from, const std::vector<std::string>& to);

 private:
  mutable std::mutex mutex_;  // guards servers_
  std::vector<std::string> servers_;
};

}  // namespace psd

#pragma once

#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace psd {

/// Where the daemons are that serve the model: those of the configuration, until it moves to others. All
/// sessions of an executor share it, so that a move of which one has heard is known to all. Thread-safe.
class ModelPlaces {
 public:
  /// `servers`: addresses of one daemon.
  explicit ModelPlaces(std::vector<std::string> servers) : servers_(std::move(servers)) {}

  /// Addresses of one daemon, for who connects.
  std::vector<std::string> servers() const;
  /// A session has heard that the model has moved from the daemon at the first addresses, in whatever order,
  /// to that at the second. It may be the last to hear of a move that others have followed, and then of more:
  /// so that counts where the model is at the first as far as anybody knows. Logs a line then.
  void moved(const std::vector<std::string>& from, const std::vector<std::string>& to);

 private:
  mutable std::mutex mutex_;  // guards what follows
  std::vector<std::string> servers_;
};

}  // namespace psd

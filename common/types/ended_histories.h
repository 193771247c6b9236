#pragma once

#include <cstddef>
#include <cstdint>
#include <set>

namespace psd {

/// The histories of published versions that a reader has seen end. Of several daemons, one may not have
/// noticed yet that a history has ended; the reader then uses another one, so that it does not return to that
/// history. Not thread-safe.
class EndedHistories {
 public:
  /// `history` has ended: another one replaces it.
  void add(uint64_t history) {
    if (ended_.size() == kMost) ended_.clear();
    ended_.insert(history);
    refused_.clear();
  }
  bool contains(uint64_t history) const { return ended_.contains(history); }
  /// Whether to read versions of `history` from daemon number `daemon` of `daemons`. A history that has ended
  /// is refused until every daemon has been refused for it: it has returned, as from a backup.
  bool admits(uint64_t history, size_t daemon, size_t daemons) {
    if (!ended_.contains(history)) {
      refused_.clear();
      return true;
    }
    refused_.insert(daemon);
    if (daemons > 1 && refused_.size() < daemons) return false;
    ended_.erase(history);
    refused_.clear();
    return true;
  }

 private:
  static constexpr size_t kMost = 64;

  std::set<uint64_t> ended_;
  std::set<size_t> refused_;  // daemons, since the last answer of a history that has not ended
};

}  // namespace psd

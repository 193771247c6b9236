#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <string>

#include "common/status/status.h"

namespace psd {

/// Which process publishes for each rank: the newest one. Processes are known by their incarnation, a random
/// number; of those that were replaced the last kReplacedMax of each rank are remembered. Pure.
class PublisherFences {
 public:
  static constexpr size_t kReplacedMax = 16;

  /// Whether the process may act for the rank. ErrorCode::rankTaken: another one has replaced it.
  Status check(uint32_t rank, uint64_t incarnation) const {
    const auto known = ranks_.find(rank);
    if (known == ranks_.end() ||
        std::ranges::find(known->second.replaced, incarnation) == known->second.replaced.end()) {
      return {};
    }
    return replaced(rank);
  }
  /// The process acts for the rank from now on.
  void admit(uint32_t rank, uint64_t incarnation) {
    Rank& of = ranks_[rank];
    if (of.current == incarnation) return;
    if (of.current != 0) of.replaced.push_back(of.current);
    if (of.replaced.size() > kReplacedMax) of.replaced.pop_front();
    of.current = incarnation;
  }
  static Error replaced(uint32_t rank) {
    return {ErrorCode::rankTaken, "another publisher has taken over rank " + std::to_string(rank)};
  }

 private:
  struct Rank {
    uint64_t current = 0;
    std::deque<uint64_t> replaced;
  };
  std::map<uint32_t, Rank> ranks_;
};

}  // namespace psd

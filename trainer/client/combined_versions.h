#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "common/types/ids.h"

namespace psd {

/// Maps the versions of several daemons' blocks to those of the model that they serve together: first the
/// shards, daemon after daemon, then the row shards, likewise. A value type.
class CombinedVersions {
 public:
  /// Number of one daemon's blocks.
  struct Blocks {
    size_t shards = 0, rowShards = 0;
  };
  explicit CombinedVersions(std::vector<Blocks> daemons) : daemons_(std::move(daemons)) {}

  /// A daemon's versions at their places; 0 elsewhere.
  std::vector<Version> place(size_t daemon, const std::vector<Version>& own) const {
    std::vector<Version> all;
    for (size_t i = 0; i < own.size(); i++) {
      all.resize(std::max(all.size(), placeOf(daemon, i) + 1));
      all[placeOf(daemon, i)] = own[i];
    }
    return all;
  }
  /// Those of one daemon; 0 where `all` is too short.
  std::vector<Version> of(size_t daemon, const std::vector<Version>& all) const {
    std::vector<Version> own(daemons_[daemon].shards + daemons_[daemon].rowShards);
    for (size_t i = 0; i < own.size(); i++) {
      if (const size_t at = placeOf(daemon, i); at < all.size()) own[i] = all[at];
    }
    return own;
  }

 private:
  size_t placeOf(size_t daemon, size_t block) const {
    const bool isRows = block >= daemons_[daemon].shards;
    size_t place = isRows ? block - daemons_[daemon].shards : block;
    for (size_t i = 0; i < daemons_.size(); i++) {
      if (isRows || i < daemon) place += daemons_[i].shards;
      if (isRows && i < daemon) place += daemons_[i].rowShards;
    }
    return place;
  }

  std::vector<Blocks> daemons_;
};

}  // namespace psd

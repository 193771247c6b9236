#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace psd {

/// An integer that cannot be confused with another kind of integer. Immutable value type.
template <class Tag, class Rep>
struct StrongId {
  Rep value{};
  auto operator<=>(const StrongId&) const = default;
};

/// Position of a shard in the shard plan, 0 … shards−1.
using ShardId = StrongId<struct ShardIdTag, uint32_t>;
/// A trainer's index among the trainers, 0 … world_size−1.
using Rank = StrongId<struct RankTag, uint32_t>;
/// Number of updates that a shard has applied.
using Version = StrongId<struct VersionTag, uint64_t>;
/// A trainer's count of pushes, from 1. Rises by one with each gradient it sends.
using Step = StrongId<struct StepTag, uint64_t>;
/// One session of one trainer, from join to leave or loss. Never reused.
using SessionId = StrongId<struct SessionIdTag, uint64_t>;
/// One process of a trainer, as the daemon counts them: its sessions as long as no other process takes its
/// rank. Never reused.
using ProcessId = StrongId<struct ProcessIdTag, uint64_t>;

}  // namespace psd

template <class Tag, class Rep>
struct std::hash<psd::StrongId<Tag, Rep>> {
  size_t operator()(const psd::StrongId<Tag, Rep>& id) const noexcept { return std::hash<Rep>{}(id.value); }
};

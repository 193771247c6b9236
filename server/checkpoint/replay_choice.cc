#include "server/checkpoint/replay_choice.h"

#include <algorithm>

#include <fmt/format.h>

#include "common/text/text.h"

namespace psd {
namespace {

std::string ranksText(const std::set<Rank>& ranks) {
  return joined(ranks, ", ", [](Rank rank) { return std::to_string(rank.value); });
}

}  // namespace

std::string_view flagOf(ReplayChoice::What what) {
  return what == ReplayChoice::What::only ? "--only" : "--without";
}

Result<bool> ReplayChoice::takes(const LogRecord& update) {
  std::set<Rank> ranks;
  for (const UpdateSource& source : update.sources) ranks.insert(source.rank);
  seen_.insert(ranks.begin(), ranks.end());
  if (everything()) return true;
  const auto wanted = std::ranges::count_if(ranks, [this](Rank rank) { return wants(rank); });
  if (wanted == 0) return false;
  if (static_cast<size_t>(wanted) == ranks.size()) return true;
  const bool averaged = std::ranges::any_of(update.sources, &UpdateSource::isShare);
  return Error{
      ErrorCode::invalidArgument,
      fmt::format(
          "{}: update {} of shard {} is of {} of ranks {}, and the log has only their combined gradient, "
          "not that of each; expected a log of updates of one push each (policy "
          "hogwild, locked, bounded_staleness, easgd or async_diloco)",
          flagOf(what_), update.scalars.number, update.shard.value,
          averaged ? "an average (policy allreduce)" : "a round", ranksText(ranks))};
}

Status ReplayChoice::checkSeen() const {
  for (const Rank rank : ranks_) {
    if (seen_.count(rank) > 0) continue;
    return {ErrorCode::invalidArgument,
            fmt::format("{}: the log has no update of rank {}; expected one of {}", flagOf(what_), rank.value,
                        seen_.empty() ? "none, as it has no updates" : ranksText(seen_))};
  }
  return {};
}

}  // namespace psd

#include "server/config/live_change.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "common/text/text.h"
#include "server/config/config_schema.h"
#include "server/optimizer/optimizer_config.h"
#include "server/optimizer/option_text.h"

namespace psd {
namespace {

using Json = nlohmann::ordered_json;

/// A key with different values in the two configurations.
struct Difference {
  std::string path;
  std::string now, next;  ///< as JSON; "none" where it is not given
};

void compare(const std::string& path, const Json* now, const Json* next, std::vector<Difference>& found) {
  if (now != nullptr && next != nullptr && *now == *next) return;
  const bool bothObjects = now != nullptr && next != nullptr && now->is_object() && next->is_object();
  const bool sameLists = now != nullptr && next != nullptr && now->is_array() && next->is_array() &&
                         now->size() == next->size() && !now->empty() && now->front().is_object();
  if (bothObjects) {
    const auto below = [&](const std::string& key) { return path.empty() ? key : path + "." + key; };
    for (const auto& [key, value] : now->items()) {
      const auto other = next->find(key);
      compare(below(key), &value, other == next->end() ? nullptr : &*other, found);
    }
    for (const auto& [key, value] : next->items()) {
      if (!now->contains(key)) compare(below(key), nullptr, &value, found);
    }
  } else if (sameLists) {
    for (size_t i = 0; i < now->size(); i++) {
      compare(path + "[" + std::to_string(i) + "]", &(*now)[i], &(*next)[i], found);
    }
  } else {
    found.push_back({path, now ? now->dump() : "none", next ? next->dump() : "none"});
  }
}

std::vector<Difference> differences(const LoadedConfig& now, const LoadedConfig& next) {
  std::vector<Difference> found;
  compare("", &now.effective, &next.effective, found);
  return found;
}

/// A key without its group: "groups[2].optimizer.lr" is "optimizer.lr".
std::string_view withoutGroup(std::string_view path) {
  if (!path.starts_with("groups[")) return path;
  const size_t end = path.find("].");
  return end == std::string_view::npos ? path : path.substr(end + 2);
}

/// A key of an entry of `tables` without the entry: "tables[1].evict.by" is "evict.by"; else empty.
std::string_view keyOfTable(std::string_view path) {
  const size_t end = path.find("].");
  return path.starts_with("tables[") && end != std::string_view::npos ? path.substr(end + 2)
                                                                      : std::string_view();
}

bool isOrLiesIn(std::string_view path, std::string_view key) {
  return path.starts_with(key) && (path.size() == key.size() || path[key.size()] == '.');
}

/// Whether a log's records, which have the rate of each update and nothing else of the optimizer, replay the
/// same under both values.
bool replaysAlike(std::string_view path) {
  const std::string_view key = withoutGroup(path);
  // The log has the rows that were admitted, but not that a filter was reset.
  if (isOrLiesIn(keyOfTable(path), "admit")) return false;
  return !isOrLiesIn(key, "optimizer") || key == "optimizer.lr" || isOrLiesIn(key, "optimizer.schedule");
}

/// Whether a log's records replay the same under both optimizers, which some policies make from their own
/// keys.
bool replaysAlike(const Optimizer& before, const Optimizer& after) {
  Json one = writeOptimizer(before), other = writeOptimizer(after);
  for (Json* json : {&one, &other}) {
    json->erase("lr");
    json->erase("schedule");
  }
  return one == other;
}

std::vector<std::string_view> slotNames(const Optimizer& optimizer) {
  std::vector<std::string_view> names;
  for (const Slot& slot : optimizer.slots()) names.push_back(slot.name);
  return names;
}

/// Returns why the local steps of `now` cannot change to those of `next`, which trainers learn when they
/// join; an empty string if they can.
std::string whyNotLocalSteps(const DaemonConfig& now, const DaemonConfig& next) {
  const PolicyChoice &before = now.groups.back().policy, &after = next.groups.back().policy;
  const bool alike = before.local.period == 0 || before.type == after.type;
  if (before.local == after.local && alike) return "";
  const auto earlyText = [](const PolicyChoice& policy) {
    const std::string key = policy.traits.rounds ? "grace_ms" : "dynamic_period";
    return policy.local.endsEarly ? ", " + key : ", no " + key;
  };
  const auto describe = [&](const PolicyChoice& policy) {
    if (policy.local.period == 0) return policy.type;
    if (policy.local.inner) {
      return policy.type + " with period " + std::to_string(policy.local.period) + ", inner " +
             policy.local.inner->describe() + earlyText(policy) +
             (policy.local.updatesPerRound > 1 ? ", learners " + std::to_string(policy.local.updatesPerRound)
                                               : "") +
             (policy.local.streams()
                  ? (policy.local.fragmentPerGroup ? ", groups " : ", fragments ") +
                        std::to_string(policy.local.fragments) + ", delay " +
                        std::to_string(policy.local.delay) + ", blend " + numberText(policy.local.blend)
                  : "") +
             (policy.local.deltas.empty() ? "" : ", deltas " + policy.local.deltas);
    }
    return policy.type + " with period " + std::to_string(policy.local.period) + ", lr " +
           numberText(policy.local.rate) + ", alpha " + numberText(policy.local.alpha);
  };
  return "policy: cannot change while the daemon runs from " + describe(before) + " to " + describe(after) +
         ": trainers learn when they join how to take steps by themselves";
}

/// Returns why the averaging of gradients cannot change, which trainers learn when they join; an empty string
/// if it can.
std::string whyNotAllReduce(const DaemonConfig& now, const DaemonConfig& next) {
  if (allReduceOf(now.groups) == allReduceOf(next.groups)) return "";
  return "policy: cannot change while the daemon runs from " + describePolicies(now.groups) + " to " +
         describePolicies(next.groups) +
         ", nor can timeout_ms and bucket_bytes of allreduce: trainers learn when they join how to average "
         "gradients";
}

/// Why the optimizer of a group cannot change to that of `next`; empty if it can. `logs`: the daemon writes a
/// log.
std::string whyNotOptimizer(const DaemonConfig& now, const DaemonConfig& next, size_t group, bool logs) {
  const Optimizer &before = now.groups[group].optimizer, &after = next.groups[group].optimizer;
  const auto cannot = [&](const std::string& key, const std::string& why) {
    return pathOf(now.groups, group, key) + ": cannot change while the daemon runs from '" +
           before.describe() + "' to '" + after.describe() + "'" + why;
  };
  if (before.name() != after.name() || slotNames(before) != slotNames(after)) {
    return cannot(
        "optimizer",
        std::string(", which keeps other state per weight") +
            (takesTrainersOptimizer(now.groups) ? "; the program of the first trainer chose it" : ""));
  }
  if (after.derivesWeights() && writeOptimizer(before) != writeOptimizer(after))
    return cannot("optimizer", ", whose weights are a function of its state and these numbers");
  if (logs && !replaysAlike(before, after))
    return cannot("policy", " with durability.type log, which replays with one value");
  return "";
}

}  // namespace

Status checkLiveChange(const LoadedConfig& now, const LoadedConfig& next) {
  std::vector<std::string> reasons = {whyNotLocalSteps(now.config, next.config),
                                      whyNotAllReduce(now.config, next.config)};
  const bool logs = now.config.durability.type == DurabilityConfig::Type::log;
  bool namesOptimizer = false;  // by its keys, which says more than the optimizer as a whole
  for (const Difference& difference : differences(now, next)) {
    const bool may = isLive(difference.path);
    if (may && (!logs || replaysAlike(difference.path))) continue;
    namesOptimizer = namesOptimizer || isOrLiesIn(withoutGroup(difference.path), "optimizer");
    reasons.push_back(difference.path + ": cannot change while the daemon runs" +
                      (may ? " with durability.type log, which replays with one value" : "") + " (" +
                      difference.now + " -> " + difference.next + ")");
  }
  const size_t groups = std::min(now.config.groups.size(), next.config.groups.size());
  for (size_t i = 0; !namesOptimizer && i < groups; i++)
    reasons.push_back(whyNotOptimizer(now.config, next.config, i, logs));
  std::erase(reasons, "");
  return reasons.empty() ? Status() : Status(ErrorCode::invalidArgument, joined(reasons, "; "));
}

std::vector<bool> samePolicies(const LoadedConfig& now, const LoadedConfig& next) {
  const auto policyOf = [](const LoadedConfig& loaded, size_t group) {
    const Json groups = loaded.effective.value("groups", Json::array());
    const bool own = group < groups.size() && groups[group].contains("policy");
    return own ? groups[group]["policy"] : loaded.effective.value("policy", Json());
  };
  std::vector<bool> same;
  for (size_t i = 0; i < now.config.groups.size(); i++) same.push_back(policyOf(now, i) == policyOf(next, i));
  return same;
}

std::string describeChange(const LoadedConfig& now, const LoadedConfig& next) {
  std::string text;
  for (const Difference& difference : differences(now, next)) {
    text += (text.empty() ? "" : ", ") + difference.path + ": " + difference.now + " -> " + difference.next;
  }
  return text;
}

}  // namespace psd

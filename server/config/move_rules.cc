#include "server/config/move_rules.h"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/text/text.h"

namespace psd {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kShownMax = 12;       // keys in an error
constexpr size_t kLineBytesMax = 100;  // of a peer's text in an error

/// Lines "KEY: VALUE" of keys below the same path.
class Lines {
 public:
  Lines(std::string& text, std::string path) : text_(text), path_(std::move(path)) {}
  void add(std::string_view key, const Json& value) {
    text_ += fmt::format("{}{}: {}\n", path_, key, value.dump());
  }

 private:
  std::string& text_;
  const std::string path_;
};

void addInner(const InnerOptimizer& inner, Lines& lines) {
  lines.add("policy.inner.type", nameOf(inner.type));
  lines.add("policy.inner.lr", inner.rate);
  lines.add("policy.inner.weight_decay", inner.weightDecay);
  lines.add("policy.inner.momentum", inner.momentum);
  lines.add("policy.inner.nesterov", inner.nesterov);
  lines.add("policy.inner.betas", inner.betas);
  lines.add("policy.inner.eps", inner.eps);
  lines.add("policy.inner.schedule.warmup_steps", inner.warmupSteps);
  lines.add("policy.inner.schedule.total_steps", inner.totalSteps);
  lines.add("policy.inner.schedule.lr_min", inner.rateMin);
}

/// The trainers' local steps.
void addSteps(const PolicyChoice& policy, Lines& lines) {
  const LocalSteps& local = policy.local;
  if (local.period == 0) return;
  lines.add("policy.period", local.period);
  if (!local.inner) {
    lines.add("policy.alpha", local.alpha);
    lines.add("optimizer.lr", local.rate);
    return;
  }
  addInner(*local.inner, lines);
  if (policy.traits.rounds) {
    lines.add("policy.grace_ms", policy.plan.local->endsEarly ? "some" : "none");  // of this group
    lines.add("policy.fragments", local.fragments);
    lines.add("policy.delay", local.delay);
    lines.add("policy.blend", local.blend);
    lines.add("policy.deltas", local.deltas.empty() ? "none" : local.deltas);
  } else {
    lines.add("policy.dynamic_period", local.endsEarly);
    lines.add("policy.learners", local.updatesPerRound);
  }
}

/// The optimizer of a daemon whose configuration has none: it adopts that of the model.
constexpr std::string_view kTrainers = "the trainers'";

void addGroup(const GroupConfig& group, bool takesOptimizer, Lines lines) {
  if (!group.match.empty()) lines.add("match", group.match);
  lines.add("policy.type", group.policy.type);
  addSteps(group.policy, lines);
  if (const auto& terms = group.policy.plan.allReduce) {
    lines.add("policy.timeout_ms", terms->timeout.count());
    lines.add("policy.bucket_bytes", terms->bucketBytes);
  }
  if (takesOptimizer) return lines.add("optimizer", kTrainers);
  lines.add("optimizer.type", group.optimizer.name());
  Json slots = Json::array();
  for (const Slot& slot : group.optimizer.slots()) slots.push_back(slot.name);
  lines.add("optimizer's state", slots);
  if (group.optimizer.derivesWeights()) lines.add("optimizer.lr", group.optimizer.fullLearningRate);
  if (const auto* const delayed = std::get_if<DelayedNesterov>(&group.optimizer.algorithm)) {
    lines.add("optimizer.delay", static_cast<uint64_t>(delayed->delay));
  }
}

using Values = std::map<std::string_view, std::string_view>;

Values valuesOf(std::string_view text) {
  Values values;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const size_t colon = line.find(": ");
    if (colon != std::string_view::npos) values.emplace(line.substr(0, colon), line.substr(colon + 2));
  }
  return values;
}

/// Empty: the key is absent.
std::string_view valueIn(const Values& values, std::string_view key) {
  const auto found = values.find(key);
  return found == values.end() ? std::string_view() : found->second;
}

/// Whether a key of one side alone belongs to a policy or an optimizer of which the other side has another
/// type, which is reported instead.
bool ofAnotherType(std::string_view key, const Values& one, const Values& other) {
  for (const std::string_view section : {"policy.", "optimizer."}) {
    const size_t at = key.find(section);
    if (at == std::string_view::npos) continue;
    const std::string type = std::string(key.substr(0, at + section.size())) + "type";
    const std::string_view mine = valueIn(one, type), theirs = valueIn(other, type);
    return key != type && !theirs.empty() && mine != theirs;
  }
  return false;
}

std::string shown(std::string_view value) {
  return value.empty() ? "absent" : printable(value, kLineBytesMax);
}

}  // namespace

std::string moveRules(const std::vector<GroupConfig>& groups, const PublishConfig* publish) {
  std::string text;
  if (publish)
    Lines(text, "").add("publish.as", publish->as ? dtypeName(*publish->as) : std::string_view("model"));
  const bool takesOptimizer = takesTrainersOptimizer(groups);
  if (groups.front().planned) {  // all equal
    addGroup(groups.front(), takesOptimizer, {text, ""});
    return text;
  }
  for (size_t i = 0; i < groups.size(); i++) {
    addGroup(groups[i], takesOptimizer, {text, pathOf(groups, i, "")});
  }
  return text;
}

Status checkMoveRules(std::string_view before, std::string_view here) {
  if (before == here) return {};
  auto theirs = valuesOf(before), own = valuesOf(here);
  const auto adopts = [](const auto& line) { return line.second == Json(kTrainers).dump(); };
  if (std::ranges::any_of(own, adopts)) {
    for (Values* const side : {&theirs, &own}) {
      std::erase_if(*side,
                    [](const auto& line) { return line.first.find("optimizer") != std::string_view::npos; });
    }
  }
  std::vector<std::string> differences;
  for (const auto& [key, value] : own) {
    const auto other = valueIn(theirs, key);
    if (other != value && !(other.empty() && ofAnotherType(key, own, theirs))) {
      differences.push_back(fmt::format("{} is {} here, {} there", key, shown(value), shown(other)));
    }
  }
  for (const auto& [key, value] : theirs) {
    if (own.contains(key) || ofAnotherType(key, theirs, own)) continue;
    differences.push_back(
        fmt::format("{} is absent here, {} there", printable(key, kLineBytesMax), shown(value)));
  }
  if (differences.empty()) return {};  // in another order
  if (differences.size() > kShownMax) {
    differences[kShownMax] = fmt::format("and {} more", differences.size() - kShownMax);
    differences.resize(kShownMax + 1);
  }
  return {ErrorCode::invalidArgument,
          "its configuration differs from that of the previous daemons: " + joined(differences, "; ")};
}

}  // namespace psd

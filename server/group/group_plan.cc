#include "server/group/group_plan.h"

#include <utility>

#include "common/os/random_id.h"
#include "server/group/group_text.h"
#include "server/plan/plan_json.h"

namespace psd {

GroupPlan::GroupPlan(Engine& engine, std::string key, DaemonId me, std::vector<Address> addresses)
    : engine_(engine), key_(std::move(key)), me_(me), addresses_(std::move(addresses)) {}

PlanView GroupPlan::view() const {
  if (!plan_ || plan_->ended) return {};
  const PlannedGroup& group = plan_->groups.front();
  return {revision_, group.epoch, group.primary, group.standby};
}

Result<PlanView> GroupPlan::take(const Result<Stored>& stored) {
  auto plan = [&]() -> Result<std::optional<Plan>> {
    if (!stored.ok()) return stored.error();
    if (stored->revision == 0) return std::optional<Plan>();
    PSD_ASSIGN_OR_RETURN(Plan parsed, parsePlan(stored->text));
    return std::optional(std::move(parsed));
  }();
  trouble_ = plan.ok() ? "" : plan.message();
  if (!plan.ok()) return plan.error();
  if (stored->revision == 0 || stored->revision >= revision_) {
    plan_ = *std::move(plan);
    revision_ = stored->revision;
  }
  return view();
}

kj::Promise<Result<PlanView>> GroupPlan::read() {
  return engine_.read(key_).then([this](const Result<Stored>& stored) { return take(stored); });
}

kj::Promise<Result<PlanView>> GroupPlan::changed() {
  return engine_.changed(key_, revision_).then([this](const Result<Stored>& stored) { return take(stored); });
}

Result<Plan> GroupPlan::planFor(const PlanView& wanted, const std::vector<Address>& standbyAt) const {
  const uint64_t proposal = drawId();
  if (!plan_ || plan_->ended) {
    Plan plan;
    plan.proposal = proposal;
    const uint64_t epoch = plan_ ? plan_->groups.front().epoch + 1 : 1;
    plan.groups.push_back({.epoch = epoch, .primary = me_, .history = drawId()});
    plan.daemons[me_] = addresses_;
    return plan;
  }
  Plan plan = *plan_;
  if (wanted.primary != plan.groups.front().primary) {
    if (wanted.primary == me_) plan.daemons[me_] = addresses_;
    return withPrimary(std::move(plan), 0, wanted.primary, drawId(), proposal);
  }
  if (!wanted.standby) return withoutStandby(std::move(plan), 0, proposal);
  return withStandby(std::move(plan), 0, *wanted.standby, standbyAt, proposal);
}

kj::Promise<Result<GroupPlan::Outcome>> GroupPlan::swap(uint64_t expectedRevision, const PlanView& wanted,
                                                        const std::vector<Address>& standbyAt) {
  using Answer = Result<Outcome>;
  const auto plan = planFor(wanted, standbyAt);
  // The plan has changed since: what it is now says more.
  if (!plan.ok()) return Answer(plan.error());
  const uint64_t expected = ended() && expectedRevision == 0 ? revision_ : expectedRevision;
  return engine_.swap(key_, expected, planText(*plan)).then([this](const Result<Swapped>& swapped) -> Answer {
    PSD_ASSIGN_OR_RETURN(const PlanView now,
                         take(swapped.ok() ? Result<Stored>(swapped->now) : Result<Stored>(swapped.error())));
    return Outcome{swapped->won, now};
  });
}

kj::Promise<Status> GroupPlan::end() {
  if (!plan_) return Status();
  Plan ended = *plan_;
  ended.ended = true;
  ended.proposal = drawId();
  return engine_.swap(key_, revision_, planText(ended)).then([](const Result<Swapped>& swapped) {
    return swapped.status();
  });
}

std::vector<Address> GroupPlan::addressesOf(DaemonId daemon) const {
  if (!plan_) return {};
  const auto found = plan_->daemons.find(daemon);
  return found == plan_->daemons.end() ? std::vector<Address>() : found->second;
}

std::string GroupPlan::primaryAddress() const {
  if (!plan_ || plan_->ended) return "nobody";
  const DaemonId primary = plan_->groups.front().primary;
  const auto addresses = addressesOf(primary);
  return addresses.empty() ? "daemon " + hex(primary) : addresses.front().toString();
}

}  // namespace psd

#include "server/membership/sample_plan.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <string>

#include "common/types/invariant_check.h"

namespace psd {
namespace {

Error contradicts(const std::string& why) {
  return {ErrorCode::invalidArgument, "the sample plan is inconsistent: " + why};
}

}  // namespace

Status SamplePlan::begin(uint64_t samples, uint64_t epochs, uint64_t firstEpoch) {
  return begin(PlanTerms{terms_.number + 1, samples, epochs, firstEpoch});
}

Status SamplePlan::begin(const PlanTerms& terms) {
  const InvariantCheck invariants(*this);
  if (terms.number == 0 || terms.samples == 0 || terms.epochs == 0 ||
      terms.epochs > std::numeric_limits<uint64_t>::max() / terms.samples) {
    return {ErrorCode::invalidArgument, std::to_string(terms.epochs) + " epochs of " +
                                            std::to_string(terms.samples) +
                                            " samples are none, or too many to count"};
  }
  terms_ = terms;
  closed_ = false;
  assignmentCount_ = 0;
  assigned_.clear();
  away_.clear();
  doneMeanwhile_.clear();
  free_.clear();
  const uint64_t skipped = std::min(terms.firstEpoch, terms.epochs);
  free_.add(skipped * terms.samples, (terms.epochs - skipped) * terms.samples);
  return {};
}

Status SamplePlan::check(const SampleRange& range) const {
  if (range.count > 0 && range.epoch < terms_.epochs && range.begin < terms_.samples &&
      range.count <= terms_.samples - range.begin) {
    return {};
  }
  return contradicts("it has no " + std::to_string(range.count) + " samples from " +
                     std::to_string(range.begin) + " on in epoch " + std::to_string(range.epoch));
}

Result<SamplePlan> SamplePlan::restore(const SavedSamples& saved) {
  SamplePlan plan;
  PSD_RETURN_IF_ERROR(plan.begin(saved.terms));
  const auto& pieces = saved.free.ends();
  if (!pieces.empty() && pieces.rbegin()->second > saved.terms.samples * saved.terms.epochs) {
    return contradicts("it has free samples beyond its end");
  }
  RangeSet seen = plan.free_ = saved.free;
  for (const SampleAssignment& assignment : saved.underWay) {
    PSD_RETURN_IF_ERROR(plan.check(assignment.range));
    if (!seen.add(plan.indexOf(assignment.range), assignment.range.count)) {
      return contradicts("sample " + std::to_string(assignment.range.begin) + " of epoch " +
                         std::to_string(assignment.range.epoch) + ", or one after it, appears twice");
    }
    // A step requested again appears twice; the first entry is the one whose gradient was applied.
    if (!plan.away_.emplace(AwayKey{assignment.process, assignment.step}, assignment.range).second)
      plan.put(assignment.range);
  }
  if (saved.closed && !plan.finished()) return contradicts("it is closed and not finished");
  plan.closed_ = saved.closed;
  plan.assignmentCount_ = saved.assignments;
  return plan;
}

const SampleAssignment& SamplePlan::assign(ProcessId trainer, const TrainerProcess& process,
                                           const HeldSamples& samples) {
  return assigned_[{trainer, samples.step}] = {samples, process, ++assignmentCount_};
}

void SamplePlan::close() {
  const InvariantCheck invariants(*this);
  closed_ = true;
}

std::optional<SampleAssignment> SamplePlan::take(ProcessId trainer, const TrainerProcess& process, Step step,
                                                 uint64_t count) {
  const InvariantCheck invariants(*this);
  if (auto before = assigned_.find({trainer, step}); before != assigned_.end()) return before->second;
  if (!hasMore()) return std::nullopt;
  const auto [index, end] = *free_.ends().begin();
  const uint64_t begin = index % terms_.samples;
  const SampleRange range{index / terms_.samples, begin,
                          std::min({count, end - index, terms_.samples - begin})};
  claim(range);
  return assign(trainer, process, {step, range});
}

void SamplePlan::done(ProcessId trainer, Step step) {
  const InvariantCheck invariants(*this);
  const auto assigned = assigned_.find({trainer, step});
  if (assigned == assigned_.end()) return;
  if (shardsBegun_ > 0) doneMeanwhile_.push_back({assigned->second, shardsBegun_});
  assigned_.erase(assigned);
}

void SamplePlan::returnSamples(ProcessId trainer, Step step) {
  const InvariantCheck invariants(*this);
  const auto assigned = assigned_.find({trainer, step});
  if (assigned == assigned_.end()) return;
  put(assigned->second.range);
  assigned_.erase(assigned);
}

std::vector<Step> SamplePlan::leave(ProcessId trainer) {
  const InvariantCheck invariants(*this);
  std::vector<Step> steps;
  auto assigned = assigned_.lower_bound({trainer, Step{0}});
  while (assigned != assigned_.end() && assigned->first.first == trainer) {
    put(assigned->second.range);
    steps.push_back(assigned->first.second);
    assigned = assigned_.erase(assigned);
  }
  return steps;
}

SamplePlan::Return SamplePlan::reclaim(ProcessId trainer, const TrainerProcess& process,
                                       const std::vector<HeldSamples>& held) {
  const InvariantCheck invariants(*this);
  Return result;
  for (auto mine = away_.lower_bound({process, Step{0}});
       mine != away_.end() && mine->first.first == process;) {
    const HeldSamples known{mine->first.second, mine->second};
    if (std::find(held.begin(), held.end(), known) != held.end()) {
      assigned_[{trainer, known.step}] = {known, process};
    } else {
      // The trainer received the step's answer from a daemon whose state is lost, or it never received the
      // samples and requests some again.
      put(known.range);
    }
    mine = away_.erase(mine);
  }
  for (const HeldSamples& each : held) {
    if (assigned_.contains({trainer, each.step})) continue;
    if (begun() && check(each.range).ok() && claim(each.range)) {
      result.claimed.push_back(assign(trainer, process, each));
    } else {
      result.lost.push_back(each.step);
    }
  }
  return result;
}

void SamplePlan::returnAllAway() {
  const InvariantCheck invariants(*this);
  for (const auto& [key, range] : away_) put(range);
  away_.clear();
}

void SamplePlan::doneAway(const AwayKey& key) {
  const InvariantCheck invariants(*this);
  const auto away = away_.find(key);
  if (away == away_.end()) return;
  if (shardsBegun_ > 0) doneMeanwhile_.push_back({{{key.second, away->second}, key.first}, shardsBegun_});
  away_.erase(away);
}

void SamplePlan::returnAway(const AwayKey& key) {
  const InvariantCheck invariants(*this);
  const auto away = away_.find(key);
  if (away == away_.end()) return;
  put(away->second);
  away_.erase(away);
}

Status SamplePlan::replayAssignment(const SampleAssignment& assignment) {
  const InvariantCheck invariants(*this);
  PSD_RETURN_IF_ERROR(check(assignment.range));
  if (assignment.number <= assignmentCount_) return {};
  assignmentCount_ = assignment.number;
  const uint64_t begin = indexOf(assignment.range), end = begin + assignment.range.count;
  const auto goes = [&](const auto& entry) {
    const uint64_t other = indexOf(entry.second);
    return entry.first == AwayKey{assignment.process, assignment.step} ||
           (other < end && begin < other + entry.second.count);
  };
  RangeSet open = free_;
  for (const auto& entry : away_) {
    if (goes(entry)) open.add(indexOf(entry.second), entry.second.count);
  }
  if (!open.remove(begin, assignment.range.count)) {
    return contradicts("samples were assigned of which some are done");
  }
  std::erase_if(away_, goes);
  free_ = std::move(open);
  away_[{assignment.process, assignment.step}] = assignment.range;
  return {};
}

size_t SamplePlan::openSteps(ProcessId trainer) const {
  return static_cast<size_t>(std::distance(assigned_.lower_bound({trainer, Step{0}}),
                                           assigned_.lower_bound({ProcessId{trainer.value + 1}, Step{0}})));
}

uint64_t SamplePlan::underWayCount() const {
  uint64_t count = 0;
  for (const auto& [key, assigned] : assigned_) count += assigned.range.count;
  for (const auto& [key, range] : away_) count += range.count;
  return count;
}

uint64_t SamplePlan::doneCount() const {
  return terms_.samples * terms_.epochs - free_.covered() - underWayCount();
}

SavedSamples SamplePlan::saved() const {
  SavedSamples saved{terms_, closed_, assignmentCount_, free_, doneMeanwhile_};
  for (const auto& [key, assigned] : assigned_) saved.underWay.push_back({assigned});
  for (const auto& [key, range] : away_) saved.underWay.push_back({{{key.second, range}, key.first}});
  for (SavedAssignment& assignment : saved.underWay) assignment.number = 0;
  if (!saved.underWay.empty()) saved.closed = false;
  return saved;
}

void SamplePlan::endSaving() {
  const InvariantCheck invariants(*this);
  shardsBegun_ = 0;
  doneMeanwhile_.clear();
}

std::string SamplePlan::checkInvariants() const {
  const uint64_t all = terms_.samples * terms_.epochs;
  if (!free_.ends().empty() && free_.ends().rbegin()->second > all) return "samples are free beyond the end";
  RangeSet seen = free_;
  const auto adds = [&](const SampleRange& range) {
    return check(range).ok() && seen.add(indexOf(range), range.count);
  };
  for (const auto& [key, assigned] : assigned_) {
    if (key.second != assigned.step) return "an assignment is filed under another step";
    if (assigned.number > assignmentCount_) return "an assignment has a number that was not given";
    if (!adds(assigned.range)) return "samples are assigned that are free, assigned twice, or none";
  }
  for (const auto& [key, range] : away_) {
    if (!adds(range)) return "samples are away that are free, assigned, or none";
  }
  if (closed_ && !finished()) return "the plan is closed and not finished";
  for (const SavedAssignment& done : doneMeanwhile_) {
    if (done.doubtful == 0 || done.doubtful > shardsBegun_)
      return "a shard is doubtful that is not being saved";
  }
  return "";
}

}  // namespace psd

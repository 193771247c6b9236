#include <algorithm>
#include <deque>
#include <memory>
#include <set>
#include <tuple>
#include <vector>

#include "server/push/push_ledger.h"
#include "test/simulation/schedules.h"

namespace psd::ledger_simulation_test {
namespace {

using std::chrono::milliseconds;
using testing::Random;
using testing::VirtualTime;
using Known = PushLedger::Known;

constexpr uint64_t kSlice = 16;  // elements

/// A shard.
struct Shape {
  uint64_t elements = 0;
  uint32_t group = 0;
};

std::vector<uint32_t> groupsOf(const std::vector<Shape>& shapes) {
  std::vector<uint32_t> groups;
  for (const Shape& shape : shapes) groups.push_back(shape.group);
  return groups;
}

/// How a group's policy answers.
enum class AnswerMode {
  live,      ///< applies each slice as it arrives
  gathers,   ///< applies a shard's part when it is whole
  together,  ///< applies all parts of the group when all are whole, after later ones have arrived
};

/// A trainer that pushes steps over a network with delays, dies, rejoins and resends, and policies that
/// answer late and reject some slices: a PushLedger between them, and a model that records what was applied.
class LedgerWorld {
 public:
  explicit LedgerWorld(Random& random)
      : random_(random), steps_(random.between(1, 6)), ledger_(drawShards(), underWay_, {}) {
    refuses_ = inflight_ == 1 && random_.oneIn(2);
    for (const auto& shape : shapes_) {
      sent_.emplace_back();
      applied_.emplace_back(shape.elements / kSlice);
    }
  }

  void run() {
    join();
    // Otherwise it loops.
    REQUIRE(time_.run(200'000, [this] { testing::requireInvariants(ledger_); }));
    REQUIRE(done_ == steps_);
    CHECK(underWay_.open == 0);
    CHECK(underWay_.arriving == 0);
    CHECK(ledger_.unfinishedClosedStep(Step{UINT64_MAX}) == nullptr);
    for (uint64_t step = 1; step <= steps_; step++) checkOver(Step{step});
  }

  uint64_t drops() const { return drops_; }
  uint64_t again() const { return again_; }
  uint64_t undecided() const { return undecided_; }
  uint64_t lateParts() const { return lateParts_; }
  uint64_t refusals() const { return refusals_; }
  uint64_t overtaking() const { return overtaking_; }

 private:
  using StepPtr = std::shared_ptr<StepPush>;
  /// The state of a gradient in a policy that applies the parts of a group together.
  struct Wait {
    std::optional<Result<PushAnswer>> outcome;
    std::function<void()> told;
  };
  struct Slice {
    SliceHead head;
    uint64_t session;
  };

  std::vector<uint32_t> drawShards() {
    const uint64_t shards = random_.between(1, 4);
    uint32_t group = 0;
    for (uint64_t i = 0; i < shards; i++) {
      if (i > 0 && random_.oneIn(2)) group++;
      shapes_.push_back({random_.between(1, 4) * kSlice, group});
    }
    for (uint32_t i = 0; i <= group; i++)
      answerModes_.push_back(static_cast<AnswerMode>(random_.between(0, 2)));
    inflight_ = random_.between(1, 3);
    return groupsOf(shapes_);
  }

  SliceHead headOf(Step step, uint32_t shard, uint64_t offset) const {
    return {step,
            shard,
            offset,
            kSlice,
            Version{step.value},
            1,
            0,
            static_cast<uint32_t>(shapes_.size()),
            shapes_[shard].elements};
  }
  AnswerMode mannerOf(uint32_t shard) const { return answerModes_[shapes_[shard].group]; }
  void later(uint64_t msMax, std::function<void()> event) {
    time_.after(milliseconds(random_.between(0, msMax)), std::move(event));
  }

  // --- The trainer ---

  void join() {
    session_++;
    ledger_.beginSession();
    begun_ = done_;
    unanswered_.clear();
    if (deaths_ < 5 && random_.oneIn(2)) later(60, [this, dying = session_] { die(dying); });
    sendMore();
  }

  void die(uint64_t session) {
    if (session != session_ || done_ == steps_) return;
    deaths_++;
    ledger_.endSession();
    session_++;  // everything earlier is obsolete
    for (auto& queue : sent_) queue.clear();
    // Like the assigner of samples: once nothing that was pushed is with a policy. What a live policy has
    // applied stays.
    const bool live =
        std::find(answerModes_.begin(), answerModes_.end(), AnswerMode::live) != answerModes_.end();
    if (!live && withPolicies_ == 0 && waits_.empty() && random_.oneIn(2))
      ledger_.drop(Step{done_ + 1}), drops_++;
    later(40, [this] { join(); });
  }

  void sendMore() {
    while (begun_ < steps_ && begun_ - done_ < inflight_) {
      const Step step{++begun_};
      for (uint32_t shard = 0; shard < shapes_.size(); shard++) {
        for (uint64_t offset = 0; offset < shapes_[shard].elements; offset += kSlice) {
          unanswered_[step].insert({shard, offset});
          send({headOf(step, shard, offset), session_});
        }
      }
    }
  }

  /// Over a connection, which keeps the order: one for each shard, but one for all if steps overlap.
  void send(const Slice& slice) {
    const uint32_t link = inflight_ > 1 ? 0 : slice.head.shard;
    sent_[link].push_back(slice);
    later(10, [this, link] {
      if (sent_[link].empty()) return;
      const Slice next = sent_[link].front();
      sent_[link].pop_front();
      lookUp(next);
      if (random_.oneIn(8)) lookUp(next);  // resent by a trainer that missed the answer
    });
  }

  void reply(const Slice& slice, const Result<PushAnswer>& answer) {
    if (slice.session != session_) return;
    const Step step = slice.head.step;
    if (!answer.ok()) {
      if (answer.error().code == ErrorCode::sessionEnded) return;
      REQUIRE(answer.error().code == ErrorCode::overloaded);  // the policy rejected it
      return send(slice);
    }
    const auto pending = unanswered_.find(step);
    if (pending == unanswered_.end()) return;
    pending->second.erase({slice.head.shard, slice.head.offset});
    while (!unanswered_.empty() && unanswered_.begin()->first.value == done_ + 1 &&
           unanswered_.begin()->second.empty()) {
      unanswered_.erase(unanswered_.begin());
      done_++;
    }
    sendMore();
  }

  // --- The daemon ---

  void lookUp(const Slice& slice) {
    PushLedger::Lookup found = ledger_.find(slice.head);
    switch (found.known) {
      case Known::over:
      case Known::received:
      case Known::refused: again_++; return reply(slice, *found.answer);
      case Known::undecided: undecided_++; return onceDecided(found.step, slice);
      case Known::withPolicy: return lookUpAfter(found.step, slice);
      case Known::nothing: break;
    }
    if (ledger_.sessionEnded() || slice.session != session_) return;
    const auto step = ledger_.unfinishedClosedStep(slice.head.step);
    if (step || ledger_.overtakes(slice.head.step)) {
      overtaking_++;
      return lookUpAfter(step, slice);
    }
    take(slice);
  }

  /// Once `step` has changed; null: immediately, after the others.
  void lookUpAfter(const StepPtr& step, const Slice& slice) {
    const bool inOrder = !step || step->closed();
    auto again = [this, slice, waits = inOrder ? ledger_.waits(slice.head.step) : nullptr]() mutable {
      later(0, [this, slice, waits = std::move(waits)]() mutable {
        waits = nullptr;
        lookUp(slice);
      });
    };
    if (step) return step->watch(std::move(again));
    again();
  }

  void onceDecided(const StepPtr& step, const Slice& slice) {
    step->watch([this, step, slice] {
      const auto decided = ledger_.decided(*step, slice.head.shard);
      if (!decided) return onceDecided(step, slice);
      reply(slice, *decided->answer);
    });
  }

  void take(const Slice& slice) {
    const uint32_t shard = slice.head.shard;
    auto admitted = ledger_.admit(slice.head, true);
    INFO((admitted.ok() ? "" : admitted.message()));
    REQUIRE(admitted.ok());
    auto [step, part, completion] = *admitted;
    part->live = mannerOf(shard) == AnswerMode::live;
    REQUIRE(part->state() != PartState::decided);
    const bool refuses = refuses_ && random_.oneIn(10);
    withPolicies_++;
    later(15, [this, slice, step = step, part = part, completion = completion, refuses] {
      const Result<PushAnswer> answer = refuses ? refuse() : apply(*step, *part, slice.head);
      withPolicies_--;
      ledger_.answered(*step, slice.head, answer);
      settle(step, slice, completion, answer);
    });
  }

  Result<PushAnswer> refuse() {
    refusals_++;
    return Error{ErrorCode::overloaded, "not now"};
  }

  Result<PushAnswer> apply(StepPush& step, PartPush& part, const SliceHead& slice) {
    const AnswerMode manner = mannerOf(slice.shard);
    part.push.taken += slice.count;
    if (manner == AnswerMode::live) {
      enter(slice.step, slice.shard, slice.offset);
      return PushAnswer{PushOutcome::applied, Version{1}};
    }
    if (part.push.taken < part.push.total) return PushAnswer{PushOutcome::received, Version{1}};
    const PushOutcome outcome = random_.oneIn(6) ? PushOutcome::stale : PushOutcome::applied;
    if (manner == AnswerMode::gathers) {
      if (outcome == PushOutcome::applied) enterAll(slice.step, slice.shard);
      return PushAnswer{outcome, Version{1}};
    }
    std::vector<uint32_t> group;
    for (uint32_t i = 0; i < shapes_.size(); i++) {
      if (shapes_[i].group == shapes_[slice.shard].group) group.push_back(i);
    }
    for (const uint32_t i : group) {
      const auto& other = step.parts[i];
      if (!other || other->push.taken < other->push.total)
        return PushAnswer{PushOutcome::received, Version{1}};
    }
    auto wait = std::make_shared<Wait>();
    waits_[&step].emplace_back(slice.shard, wait);
    later(40, [this, wait, group, outcome, number = slice.step] {
      for (const uint32_t shard : group) {
        if (outcome == PushOutcome::applied) enterAll(number, shard);
      }
      wait->outcome = PushAnswer{outcome, Version{1}};
      if (wait->told) wait->told();
    });
    return PushAnswer{PushOutcome::received, Version{1}};
  }

  void settle(const StepPtr& step, const Slice& slice, uint64_t completion, const Result<PushAnswer>& last) {
    if (!step->completedBy(completion)) {
      closeIfOver(step);
      return reply(slice, last);
    }
    const auto again = [this, step, slice, completion, last] { settle(step, slice, completion, last); };
    if (step->unanswered > 0) return step->watch([this, again] { later(0, again); });
    for (auto& [shard, wait] : waits_[step.get()]) {
      if (wait->outcome) continue;
      wait->told = again;
      return;
    }
    std::vector<uint32_t> waited;
    for (auto& [shard, wait] : waits_[step.get()]) {
      step->parts[shard]->outcome = *wait->outcome;
      waited.push_back(shard);
    }
    waits_.erase(step.get());
    const PushReply told = ledger_.conclude(*step, slice.head.shard, last, waited);
    lateParts_ += told.dropped.size();
    for (const uint32_t shard : told.dropped) checkNothingOf(step->number, shard);
    step->outcome = told.answer;
    closeIfOver(step);
    reply(slice, told.answer);
  }

  void closeIfOver(const StepPtr& step) {
    if (!ledger_.closeIfOver(step)) return;
    step->changed();
    const bool any = ledger_.applied(*step);
    REQUIRE(ledger_.appliedBefore(step->number) == any);
    checkOver(step->number);
  }

  // --- The model ---

  void enter(Step step, uint32_t shard, uint64_t offset) {
    REQUIRE(applied_[shard][offset / kSlice].insert(step.value).second);  // once
  }
  void enterAll(Step step, uint32_t shard) {
    for (uint64_t offset = 0; offset < shapes_[shard].elements; offset += kSlice) enter(step, shard, offset);
  }
  void checkNothingOf(Step step, uint32_t shard) const {
    for (const auto& slice : applied_[shard]) REQUIRE_FALSE(slice.contains(step.value));
  }
  /// The ledger's record of a finished step matches the model.
  void checkOver(Step step) {
    for (uint32_t shard = 0; shard < shapes_.size(); shard++) {
      for (uint64_t offset = 0; offset < shapes_[shard].elements; offset += kSlice) {
        const auto found = ledger_.find(headOf(step, shard, offset));
        INFO("step " << step.value << ", shard " << shard);
        REQUIRE(found.known == Known::over);
        REQUIRE((*found.answer)->applied() == applied_[shard][offset / kSlice].contains(step.value));
      }
    }
  }

  Random& random_;
  VirtualTime time_;
  UpdatesInFlight underWay_;
  const uint64_t steps_;
  uint64_t inflight_ = 1;
  bool refuses_ = false;
  std::vector<Shape> shapes_;
  std::vector<AnswerMode> answerModes_;  // by group
  PushLedger ledger_;
  uint64_t session_ = 0, begun_ = 0, done_ = 0, deaths_ = 0;
  std::map<Step, std::set<std::pair<uint32_t, uint64_t>>> unanswered_;  // slices, by shard and offset
  std::vector<std::deque<Slice>> sent_;                                 // in transit, by connection
  std::vector<std::vector<std::set<uint64_t>>> applied_;                // steps, by shard and slice
  std::map<StepPush*, std::vector<std::pair<uint32_t, std::shared_ptr<Wait>>>> waits_;
  uint64_t withPolicies_ = 0;  // slices
  uint64_t drops_ = 0, again_ = 0, undecided_ = 0, lateParts_ = 0, refusals_ = 0, overtaking_ = 0;
};

TEST_CASE("any schedule of slices, deaths and answers: every step is applied once, or never if so answered") {
  uint64_t drops = 0, again = 0, undecided = 0, lateParts = 0, refusals = 0, overtaking = 0;
  testing::runSchedules(6000, [&](Random& random) {
    LedgerWorld world(random);
    world.run();
    drops += world.drops();
    again += world.again();
    undecided += world.undecided();
    lateParts += world.lateParts();
    refusals += world.refusals();
    overtaking += world.overtaking();
  });
  if (std::getenv("PSD_SIMULATION_SEED") != nullptr) return;
  CHECK(drops > 0);  // the schedules cover the cases under test
  CHECK(again > 0);
  CHECK(undecided > 0);
  CHECK(lateParts > 0);
  CHECK(refusals > 0);
  CHECK(overtaking > 0);
}

/// A peer that sends slices of any step in any order, with wrong numbers of parts, in overlapping pieces, and
/// policies that answer immediately, late, or with a rejection.
class HostilePeerWorld {
 public:
  explicit HostilePeerWorld(Random& random) : random_(random), ledger_(groupsOf(kShapes), underWay_, {}) {}

  void run() {
    for (int i = 0; i < 200; i++) {
      if (random_.oneIn(30)) ledger_.endSession();
      if (random_.oneIn(10)) ledger_.beginSession();
      if (!atWork_.empty() && random_.oneIn(2)) answerOne();
      send();
      testing::requireInvariants(ledger_);
      // What is open is bounded by what was accepted, not by what was sent.
      REQUIRE(underWay_.open <= taken_);
    }
    while (!atWork_.empty()) answerOne();
    // A newer step ends what the older ones left.
    refuses_ = false;
    ledger_.beginSession();
    for (uint32_t shard = 0; shard < kShapes.size(); shard++) {
      push(
          {Step{1000}, shard, 0, kShapes[shard].elements, Version{1}, 1, 0, kParts, kShapes[shard].elements});
      while (!atWork_.empty()) answerOne();
    }
    completing_.clear();  // which keeps steps alive
    CHECK(underWay_.open == 0);
    CHECK(underWay_.arriving == 0);
  }

  uint64_t taken() const { return taken_; }
  uint64_t refused() const { return refused_; }

 private:
  using StepPtr = std::shared_ptr<StepPush>;
  struct AtWork {
    SliceHead head;
    PushLedger::Admitted in;
  };
  static inline const std::vector<Shape> kShapes = {{2 * kSlice, 0}, {kSlice, 0}, {2 * kSlice, 1}};
  static constexpr uint32_t kParts = 3;

  void send() {
    const auto shard = static_cast<uint32_t>(random_.below(kShapes.size()));
    const uint64_t elements = kShapes[shard].elements;
    const uint64_t count = random_.oneIn(3) ? elements : kSlice;
    const uint64_t offset = count == elements ? 0 : random_.below(elements / kSlice) * kSlice;
    const uint32_t parts = random_.oneIn(5) ? static_cast<uint32_t>(random_.between(0, 5)) : kParts;
    push({Step{random_.between(1, 12)}, shard, offset, count, Version{random_.between(1, 2)}, 1, 0, parts,
          random_.oneIn(10) ? offset + count : elements});
  }

  void push(const SliceHead& head) {
    const PushLedger::Lookup found = ledger_.find(head);
    if (found.known != Known::nothing) return;
    if (ledger_.sessionEnded() || ledger_.unfinishedClosedStep(head.step)) return;
    const auto before = underWay_;
    auto admitted = ledger_.admit(head, true);
    if (!admitted.ok()) {
      refused_++;
      REQUIRE(admitted.error().code == ErrorCode::badSlice);
      REQUIRE(underWay_.open == before.open);
      REQUIRE(underWay_.arriving == before.arriving);
      return;
    }
    REQUIRE(head.parts == kParts);
    taken_++;
    // A policy gathers what it gets, and would count duplicates.
    uint64_t& had = gathered_[admitted->part];
    had += head.count;
    REQUIRE(had <= admitted->part->push.total);
    atWork_.push_back({head, *admitted});
  }

  void answerOne() {
    const size_t which = random_.below(atWork_.size());
    const AtWork one = atWork_[which];
    atWork_.erase(atWork_.begin() + static_cast<std::ptrdiff_t>(which));
    const auto& [step, part, completion] = one.in;
    Result<PushAnswer> answer = PushAnswer{PushOutcome::received, Version{1}};
    if (refuses_ && random_.oneIn(10)) {
      answer = Error{ErrorCode::overloaded, "not now"};
      gathered_[part] -= one.head.count;
    } else {
      part->push.taken += one.head.count;
      if (part->push.taken == part->push.total) {
        // Under one policy a shard's part of a step becomes whole once, whatever is sent.
        REQUIRE(whole_.insert({one.head.step, one.head.shard}).second);
        answer->outcome = random_.oneIn(2) ? PushOutcome::applied : PushOutcome::late;
      }
    }
    ledger_.answered(*step, one.head, answer);
    settle(one, answer);
  }

  void settle(const AtWork& one, const Result<PushAnswer>& answer) {
    const StepPtr& step = one.in.step;
    if (one.in.completion != 0) completing_[step.get()] = one;
    const auto completing = completing_.find(step.get());
    if (completing == completing_.end() || !step->completedBy(completing->second.in.completion)) return;
    if (step->unanswered > 0) return;
    step->outcome = ledger_.conclude(*step, completing->second.head.shard, answer, {}).answer;
    if (ledger_.closeIfOver(step)) step->changed();
  }

  Random& random_;
  UpdatesInFlight underWay_;
  PushLedger ledger_;
  bool refuses_ = true;
  std::vector<AtWork> atWork_;
  std::map<std::shared_ptr<PartPush>, uint64_t> gathered_;  // elements
  std::set<std::pair<Step, uint32_t>> whole_;
  std::map<StepPush*, AtWork> completing_;
  uint64_t taken_ = 0, refused_ = 0;
};

TEST_CASE(
    "a peer that sends in any order makes no policy take a shard's part twice, and leaves nothing open") {
  uint64_t taken = 0, refused = 0;
  testing::runSchedules(3000, [&](Random& random) {
    HostilePeerWorld world(random);
    world.run();
    taken += world.taken();
    refused += world.refused();
  });
  if (std::getenv("PSD_SIMULATION_SEED") != nullptr) return;
  CHECK(taken > 0);
  CHECK(refused > 0);
}

}  // namespace
}  // namespace psd::ledger_simulation_test

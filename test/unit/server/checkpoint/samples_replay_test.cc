// The outcome of assigned samples when daemons die: simulated with a seed, and with a failing disk.

#include "server/checkpoint/samples_replay.h"

#include <map>
#include <optional>
#include <set>
#include <variant>
#include <vector>

#include "test/support/catch.h"
#include "test/support/random.h"
#include "test/unit/server/checkpoint/daemon_life.h"

namespace psd::samples_replay_test {
namespace {

using namespace testing;

constexpr size_t kTrainers = 3;

/// A shard, and how often it contains each sample.
struct SimulatedShard {
  Version version;
  std::vector<AppliedPush> pushes;
  std::map<uint64_t, int> counts;  // by epoch × samples + place

  /// Whether the push of a step was applied, if that is known.
  std::optional<bool> applied(const TrainerProcess& process, Step step) const {
    for (const AppliedPush& push : pushes) {
      if (push.rank == process.rank && push.incarnation == process.incarnation && push.step >= step) {
        return holds(push, step);
      }
    }
    return std::nullopt;
  }
};

struct LoggedUpdate {
  uint32_t shard = 0;
  Version version;
  UpdateSource source;
  SampleRange range;
};

/// A trainer with the pushes of its samples, all made and sent in the order of their steps.
struct SimulatedTrainer {
  struct Push {
    SampleRange range;
    uint32_t shard = 0;    // the next to receive it
    bool applied = false;  // by some
    size_t logged = 0;     // log records at that time
  };
  TrainerProcess process;
  ProcessId id;  // 0: it has departed
  uint64_t steps = 0;
  std::map<Step, Push> held;
  std::set<Step> dropped;  // by the current daemon
};

/// Trainers, a daemon and its disk. Under all failures, each shard must contain each sample of each epoch
/// once.
class Simulation {
 public:
  /// Without a log, deaths undo what followed the newest checkpoint, in the counts too.
  Simulation(uint64_t seed, uint32_t shards, bool logs)
      : random_(seed), logs_(logs), shards_(shards), saved_{.shards = shards_} {
    PSD_REQUIRE_OK(plan_.begin(random_.between(1, 60), random_.between(1, 3)));
    for (SimulatedTrainer& trainer : trainers_) startDaemon(trainer);
    checkpoint_ = {};
    saved_.manifest = describe(shards_);
  }

  void run() {
    for (int i = 0; !plan_.finished(); i++) {
      REQUIRE(i < 200'000);
      turn();
    }
    const uint64_t all = plan_.terms().samples * plan_.terms().epochs;
    CHECK(plan_.doneCount() == all);
    for (const SimulatedShard& shard : shards_) {
      REQUIRE(shard.counts.size() == all);
      for (const auto& [sample, count] : shard.counts) REQUIRE(count == 1);
    }
  }

 private:
  struct Saved {
    Manifest manifest;
    std::vector<SimulatedShard> shards;
    size_t logFrom = 0;
  };

  Manifest describe(const std::vector<SimulatedShard>& shards) const {
    Manifest manifest;
    for (uint32_t i = 0; i < shards.size(); i++) {
      ManifestShard shard;
      shard.range.id = ShardId{i};
      shard.version = shards[i].version;
      shard.pushed = {shard.range.count, shards[i].pushes};
      manifest.shards.push_back(shard);
    }
    return manifest;
  }

  void startDaemon(SimulatedTrainer& trainer) {
    const Rank rank{static_cast<uint32_t>(&trainer - trainers_.data())};
    trainer = {.process = {rank, ++lastIncarnation_}, .id = {++lastId_}};
  }

  void turn() {
    if (random_.oneIn(60)) return die();
    if (random_.oneIn(15)) return save();
    if (random_.oneIn(20) && mayGiveUp()) return plan_.returnAllAway();
    SimulatedTrainer& trainer = trainers_[random_.below(kTrainers)];
    if (trainer.id.value == 0) return rejoin(trainer);
    if (random_.oneIn(30) && !partlyApplied(trainer)) return leave(trainer);
    if (trainer.held.size() < 3 && random_.oneIn(2)) return take(trainer);
    push(trainer);
  }

  void take(SimulatedTrainer& trainer) {
    const Step step{trainer.steps + 1};
    const auto assignment = plan_.take(trainer.id, trainer.process, step, random_.between(1, 8));
    if (!assignment) return;
    trainer.steps++;
    trainer.held[step] = {assignment->range};
    log_.push_back(LoggedAssignment{plan_.terms(), *assignment});
  }

  /// One shard takes a part, or the trainer gets an answer.
  void push(SimulatedTrainer& trainer) {
    for (auto& [step, push] : trainer.held) {
      if (push.shard < shards_.size()) return pushPart(trainer, step, push);
    }
    if (trainer.held.empty() || random_.oneIn(2)) return;
    durable_ = std::max(durable_, trainer.held.begin()->second.logged);
    trainer.held.erase(trainer.held.begin());
  }

  void pushPart(SimulatedTrainer& trainer, const Step step, SimulatedTrainer::Push& push) {
    const bool fresh = push.shard == 0 && !partlyApplied(trainer);
    if (fresh && random_.oneIn(8)) trainer.dropped.insert(step);  // it is stale
    SimulatedShard& shard = shards_[push.shard];
    if (const auto known = shard.applied(trainer.process, step)) {
      push.applied = push.applied || *known;
    } else if (!trainer.dropped.contains(step)) {
      push.applied = true;
      const UpdateSource source{trainer.process.rank, 1, trainer.process.incarnation, step, {}, 0};
      const LoggedUpdate update{push.shard, Version{shard.version.value + 1}, source, push.range};
      apply(update);
      log_.push_back(update);
      push.logged = log_.size();
    }
    if (++push.shard < shards_.size()) return;
    if (push.applied) {
      plan_.done(trainer.id, step);
    } else {
      plan_.returnSamples(trainer.id, step);
      // Otherwise, if a crash came between two shards of the next push, those that lack it could take this
      // one.
      if (shards_.size() > 1) trainer.held.erase(step);
    }
  }

  void apply(const LoggedUpdate& update) {
    SimulatedShard& shard = shards_[update.shard];
    shard.version = update.version;
    const UpdateSource& source = update.source;
    recordPush(shard.pushes, {source.rank, source.incarnation, source.step, update.version, 0});
    const uint64_t begin = update.range.epoch * plan_.terms().samples + update.range.begin;
    for (uint64_t i = 0; i < update.range.count; i++) shard.counts[begin + i]++;
  }

  /// Whether some shards have a push of it that others lack; then its samples are not assigned again here.
  bool partlyApplied(const SimulatedTrainer& trainer) const {
    for (const auto& [step, push] : trainer.held) {
      if (push.shard > 0 && push.shard < shards_.size()) return true;
      std::set<std::optional<bool>> fates;
      for (const SimulatedShard& shard : shards_) fates.insert(shard.applied(trainer.process, step));
      if (fates.size() > 1 && fates.contains(true)) return true;
    }
    return false;
  }

  bool mayGiveUp() const {
    for (const SimulatedTrainer& trainer : trainers_) {
      if (trainer.id.value == 0 && partlyApplied(trainer)) return false;
    }
    return true;
  }

  /// It is killed, or leaves; not while a crash could leave a push of it in only some shards.
  void leave(SimulatedTrainer& trainer) {
    for (const auto& [step, push] : trainer.held) durable_ = std::max(durable_, push.logged);
    plan_.leave(trainer.id);
    startDaemon(trainer);
  }

  void rejoin(SimulatedTrainer& trainer) {
    if (random_.oneIn(4) && !partlyApplied(trainer)) return startDaemon(trainer);  // it died as well
    trainer.id = {++lastId_};
    std::vector<HeldSamples> held;
    for (const auto& [step, push] : trainer.held) held.push_back({step, push.range});
    const auto back = plan_.reclaim(trainer.id, trainer.process, held);
    for (const SampleAssignment& assignment : back.claimed)
      log_.push_back(LoggedAssignment{plan_.terms(), assignment});
    trainer.dropped = {back.lost.begin(), back.lost.end()};
  }

  /// One more step of a checkpoint.
  void save() {
    if (!checkpoint_) {
      checkpoint_ = Saved{.logFrom = log_.size()};
      durable_ = log_.size();
    } else if (checkpoint_->shards.size() < shards_.size()) {
      plan_.beginShard();
      checkpoint_->shards.push_back(shards_[checkpoint_->shards.size()]);
    } else {
      saved_ = *std::move(checkpoint_);
      saved_.manifest = describe(saved_.shards);
      saved_.manifest.samples = plan_.saved();
      plan_.endSaving();
      checkpoint_.reset();
    }
  }

  /// The daemon dies, and another starts.
  void die() {
    const PlanTerms terms = plan_.terms();
    log_.resize(logs_ ? random_.between(durable_, log_.size()) : saved_.logFrom);
    checkpoint_.reset();
    shards_ = saved_.shards;
    SamplesReplay replay(saved_.manifest);
    for (size_t i = saved_.logFrom; i < log_.size(); i++) {
      if (const auto* assignment = std::get_if<LoggedAssignment>(&log_[i])) {
        PSD_REQUIRE_OK(replay.assign(*assignment));
        continue;
      }
      const auto& update = std::get<LoggedUpdate>(log_[i]);
      replay.update(ShardId{update.shard}, {&update.source, 1});
      if (update.version > shards_[update.shard].version) apply(update);
    }
    plan_ = std::move(replay).finish();
    if (!plan_.begun()) PSD_REQUIRE_OK(plan_.begin(terms));  // no announced assignment existed
    durable_ = log_.size();
    for (SimulatedTrainer& trainer : trainers_) {
      trainer.id = {};
      for (auto& [step, push] : trainer.held) push = {push.range};  // all of it is sent again
    }
  }

  testing::Random random_;
  const bool logs_;
  SamplePlan plan_;
  std::vector<SimulatedShard> shards_;
  std::vector<SimulatedTrainer> trainers_ = std::vector<SimulatedTrainer>(kTrainers);
  std::vector<std::variant<LoggedAssignment, LoggedUpdate>> log_;
  size_t durable_ = 0;  // records that a crash leaves
  Saved saved_;
  std::optional<Saved> checkpoint_;  // in progress
  uint64_t lastId_ = 0, lastIncarnation_ = 0;
};

TEST_CASE(
    "with a log every sample of every epoch is in every shard once, whenever daemons and trainers die") {
  for (uint64_t seed = 1; seed <= 1000; seed++) {
    INFO("seed " << seed);
    Simulation(seed, static_cast<uint32_t>(1 + seed % 3), true).run();
  }
}

TEST_CASE("with checkpoints alone, exactly the samples missing from the model are assigned again") {
  for (uint64_t seed = 1; seed <= 300; seed++) {
    INFO("seed " << seed);
    Simulation(seed, 1, false).run();
  }
}

TEST_CASE("after a crash at any operation the samples that are done are those in the model") {
  const Survival survival = GENERATE(from_range(std::begin(kSurvivals), std::end(kSurvivals)));
  TestLoop loop;
  const TrainerProcess trainer{Rank{3}, 11};  // that of push()
  const auto beginPlan = [&](Life& daemon, ProcessId id) {
    const auto plan = daemon.durability->samples();
    if (!plan->lockExclusive()->begun()) PSD_REQUIRE_OK(plan->lockExclusive()->begin(100, 1));
    plan->lockExclusive()->reclaim(id, trainer, {});
    return plan;
  };
  bool done = false;
  for (uint64_t point = 0; !done; point++) {
    MemoryEnv env;
    env.crashAt(point, 7);
    uint64_t last = 0;
    for (uint64_t life = 1; life <= 2; life++) {
      Life daemon(env, 1);
      if (!daemon.store || !daemon.begin()) break;
      const auto plan = beginPlan(daemon, ProcessId{life});
      for (int i = 1; i <= 3; i++) {
        const Step step{++last};
        const auto assignment = plan->lockExclusive()->take(ProcessId{life}, trainer, step, 1);
        daemon.durability->assigned({plan->lockExclusive()->terms(), *assignment});
        const uint64_t logged = push(*daemon.store, 0, countingGradient(*daemon.store, 0), step);
        if (i != 3) plan->lockExclusive()->done(ProcessId{life}, step);
        if (i == 2) static_cast<void>(daemon.durability->finish());  // a checkpoint in between
        loop.wait(daemon.store->shard(0).whenDurable(logged));
      }
    }
    done = !env.crashed();
    env.restart(survival);
    INFO("operation " << point << ", survival " << static_cast<int>(survival));
    const Life after(env, 1);
    REQUIRE(after.store);
    const auto plan = after.durability->samples()->lockExclusive();
    REQUIRE(static_cast<float>(plan->doneCount()) == counts(*after.store)[0]);
  }
}

}  // namespace
}  // namespace psd::samples_replay_test

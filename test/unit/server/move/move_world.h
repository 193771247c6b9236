#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <kj/timer.h>

#include "server/move/incoming_move.h"
#include "server/move/outgoing_move.h"
#include "test/support/event_loop.h"
#include "test/support/fake_daemon.h"
#include "test/unit/server/checkpoint/daemon_life.h"

namespace psd::move_test {

using namespace testing;

inline constexpr uint64_t kMove = 0xfeed;
inline const uint64_t kElements = ModelLayout(kSmallModel).totalElements();
inline const DaemonAddresses kThere{{"tcp://new:1"}};
inline const std::string kOldFolder = "/old", kNewFolder = "/new";

inline LoadedConfig configOf(const std::string& folder, const std::string& durability,
                             const std::string& more = "") {
  std::string text =
      R"({"policy": {"type": "locked"}, "optimizer": )" + kCounting + R"(, "shards": 2)" + more;
  if (durability != "none") {
    text += R"(, "durability": {"type": ")" + durability + R"(", "path": ")" + folder + R"("})";
  }
  auto loaded = readDaemonConfig(nlohmann::ordered_json::parse(text + "}"));
  PSD_REQUIRE_OK(loaded);
  return *std::move(loaded);
}

class NoOutcomes final : public StepOutcomes {
 public:
  bool wanted() const override { return false; }
  kj::Promise<void> tell(ProcessId, Step, bool) override { return kj::READY_NOW; }
};

/// The parts of a daemon that take part in a move, over a disk. Owned by one thread.
class TestDaemon final : public FakeDaemon {
 public:
  TestDaemon(TestLoop& loop, MemoryEnv& env, LoadedConfig loaded)
      : FakeDaemon(std::move(loaded)),
        loop_(loop),
        config_(std::make_shared<const DaemonConfig>(this->loaded().config)),
        budgets_(config_->limits, 100),
        host_(config_, {makeCpuBackend()}, env, metrics_, budgets_, outcomes_),
        coordinator_(RunTerms{.ranksMax = 100, .lease = std::chrono::seconds(10)}, serving_, host_, metrics_),
        timer_(kj::origin<kj::TimePoint>()),
        outgoing_(coordinator_, host_, env, *config_, *this, timer_),
        incoming_(coordinator_, host_, env, *config_, *this, timer_) {
    spdlog::set_level(spdlog::level::off);  // the thousands of failures are intended
    started = start();
  }

  /// A trainer initializes a model and trains it with `updates` updates.
  void train(uint32_t updates) {
    auto grant =
        loop_.wait(coordinator_.join({.rank = Rank{0}, .worldSize = 1, .incarnation = 7}, {}, kSmallModel));
    PSD_REQUIRE_OK(grant);
    trainer_ = grant->trainer;
    PSD_REQUIRE_OK(loop_.wait(coordinator_.initialized(trainer_.session, Step{0})));
    ParameterStore& store = *model().store;
    uint64_t logged = 0;
    for (uint32_t i = 1; i <= updates; i++) logged = pushRound(store, Step{i});
    loop_.wait(store.block(0).whenDurable(logged));  // a trainer is not answered before
  }
  /// The trainer quiesces until the move is over.
  void pass(kj::Duration time) {
    timer_.advanceTo(timer_.now() + time);
    kj::Promise<void> never = kj::NEVER_DONE;
    loop_.resolved(never);  // runs its consequences
  }
  void quiesce() { aside_ = coordinator_.quiesce(trainer_.session, kMove, ""); }
  /// Where the trainer continues; nothing: it was not notified yet.
  std::optional<DaemonAddresses> announcedAddresses() {
    if (!loop_.resolved(*aside_)) return {};
    auto answer = loop_.wait(kj::mv(*aside_));
    aside_.reset();
    PSD_REQUIRE_OK(answer);
    return *answer;
  }
  /// Asks the lead for the outcome of the move until that is known.
  void queryOutcome() {
    REQUIRE(loop_.until([&] {
      timer_.advanceTo(timer_.now() + 20 * kj::SECONDS);
      return serving_.admits();
    }));
  }

  ServedModel& model() { return *host_.models().model(); }
  ServingState& serving() { return serving_; }
  OutgoingMove& outgoing() { return outgoing_; }
  IncomingMove& incoming() { return incoming_; }
  Coordinator& coordinator() { return coordinator_; }
  ParameterHost& host() { return host_; }
  bool hasModel() const { return host_.hasModel(); }
  int opened() const { return opened_; }

  Status started;
  Result<MoveOutcome> leadSays = Error{ErrorCode::unavailable, "out of reach"};

 private:
  void openGates() override { opened_++; }
  std::vector<std::string> reachableAt() const override { return {"tcp://old:1"}; }
  Result<MoveOutcome> askLead(const MoveLead&, uint64_t) const override { return leadSays; }
  Status start() {
    PSD_RETURN_IF_ERROR(host_.open());
    PSD_RETURN_IF_ERROR(host_.openVersions());
    PSD_RETURN_IF_ERROR(outgoing_.look());
    PSD_RETURN_IF_ERROR(incoming_.look());
    return serving_.outgoing().moved() || serving_.incoming().unread() ? Status() : prepare();
  }
  Status prepare() override {
    PSD_ASSIGN_OR_RETURN(const PriorRun prior, host_.prepare());
    coordinator_.begin(prior);
    host_.beginSaving();
    return {};
  }

  TestLoop& loop_;
  const std::shared_ptr<const DaemonConfig> config_;
  DaemonMetrics metrics_;
  MemoryBudgets budgets_;
  NoOutcomes outcomes_;
  ParameterHost host_;
  ServingState serving_;
  Coordinator coordinator_;
  kj::TimerImpl timer_;
  int opened_ = 0;
  OutgoingMove outgoing_;
  IncomingMove incoming_;
  TrainerRef trainer_;
  std::optional<kj::Promise<MoveQuiescence::Answer>> aside_;
};

/// A daemon with a model, and the target of its move, each with its own disk.
struct World {
  /// `more`: keys of both configurations, as text.
  explicit World(const std::string& newDurability, const std::string& oldDurability = "log",
                 const std::string& more = "")
      : oldConfig(configOf(kOldFolder, oldDurability, more)),
        newConfig(configOf(kNewFolder, newDurability, more)) {
    before.emplace(loop, oldDisk, oldConfig);
    PSD_REQUIRE_OK(before->started);
    before->train(3);
    startNew();
  }
  void startNew() {
    after.reset();
    after.emplace(loop, newDisk, newConfig);
  }
  void startOld() {
    before.reset();
    before.emplace(loop, oldDisk, oldConfig);
  }

  Status commitAtTarget() { return loop.wait(after->incoming().commit(kMove)); }
  /// The target's machine starts again after a failure, and learns whether the move is committed. Then it has
  /// the model, or none.
  void restartTarget(Survival survival, bool committed) {
    after.reset();
    newDisk.restart(survival);
    startNew();
    PSD_REQUIRE_OK(after->started);
    after->leadSays = committed ? MoveOutcome::committed : MoveOutcome::stays;
    after->queryOutcome();
    REQUIRE(after->hasModel() == committed);
  }

  /// Transfers until all parts have arrived.
  Status transferParts() {
    PSD_ASSIGN_OR_RETURN(const MoveTerms terms, before->outgoing().terms());
    PSD_RETURN_IF_ERROR(after->incoming().begin(kMove, 1, begun.beats));
    PSD_RETURN_IF_ERROR(after->incoming().check(kMove, terms, kSmallModel));
    if (terms.versions) PSD_RETURN_IF_ERROR(copyVersions());
    PSD_RETURN_IF_ERROR(before->outgoing().begin(kMove, kThere, std::chrono::minutes(1), begun));
    before->quiesce();
    PSD_ASSIGN_OR_RETURN(quiet, loop.wait(before->outgoing().whenQuiesced(kMove)));
    PSD_RETURN_IF_ERROR(after->incoming().check(kMove, quiet.terms, kSmallModel));
    auto stream = std::make_shared<ImageStream>(1 << 20);
    auto given = before->outgoing().give(kMove, {0, kElements}, stream).then([stream](auto path) {
      stream->finish();
      return path;
    });
    Status kept;
    while (kept.ok() && !loop.resolved(given)) {
      while (auto part = stream->take()) {
        if (kept.ok()) kept = after->incoming().image(kMove, 0, *part);
      }
    }
    if (!kept.ok()) stream->end();
    const Result<std::string> path = loop.wait(kj::mv(given));
    while (auto part = stream->take()) {
      if (kept.ok()) kept = after->incoming().image(kMove, 0, *part);
    }
    PSD_RETURN_IF_ERROR(kept);
    PSD_RETURN_IF_ERROR(path);
    return after->incoming().imageDone(kMove, 0, *path);
  }
  /// Copies the published versions that are newer than `last`.
  Status copyVersions(uint64_t last = 0) {
    for (;;) {
      auto stream = std::make_shared<ImageStream>(1 << 20);
      auto given = before->outgoing().giveVersion(last, stream).then([stream](auto version) {
        stream->finish();
        return version;
      });
      const auto version = loop.wait(kj::mv(given));
      PSD_RETURN_IF_ERROR(version);
      if (version->number == 0) return {};
      while (const auto part = stream->take()) {
        PSD_RETURN_IF_ERROR(after->incoming().versionImage(kMove, part->bytes));
      }
      PSD_RETURN_IF_ERROR(loop.wait(after->incoming().versionDone(kMove, version->oldest)));
      last = version->number;
    }
  }
  Status install() {
    return loop.wait(after->incoming().install(kMove, quiet.trainers, quiet.versions)).status();
  }
  Status commit() { return loop.wait(before->outgoing().commit(kMove)); }
  void giveUp() {
    before->outgoing().abandon(kMove, "a test");
    after->incoming().abandon(kMove);
  }

  TestLoop loop;
  MemoryEnv oldDisk, newDisk;
  const LoadedConfig oldConfig, newConfig;
  std::optional<TestDaemon> before, after;
  QuiescedModel quiet;
  MoveStart begun;
};

}  // namespace psd::move_test

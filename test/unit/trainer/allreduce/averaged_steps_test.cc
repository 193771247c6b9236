// AveragedSteps of several trainers, each on a thread, over real gloo and a daemon in this process.

#include "trainer/loop/averaged_steps.h"

#include <array>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>

#include "test/support/catch.h"
#include "test/unit/trainer/client/fake_client.h"
#include "test/unit/trainer/model/softmax_model.h"
#include "trainer/allreduce/gloo_group.h"

namespace psd::averaged_steps_test {
namespace {

using namespace testing;
using std::chrono::milliseconds;

constexpr std::chrono::seconds kWaitMost{60};  // after which a test fails rather than hangs
// After this time a member counts as silent; far above a step's duration while other programs have the cores.
constexpr std::chrono::seconds kSilence{5};

/// The daemon's part: forms a group of the joined trainers once all of them have asked. Thread-safe.
class GroupDaemon {
 public:
  explicit GroupDaemon(std::vector<float> values) { daemon_.values = std::move(values); }

  void in(uint32_t rank) {
    const std::lock_guard lock(mutex_);
    in_.insert(rank);
  }
  void gone(uint32_t rank) {
    const std::lock_guard lock(mutex_);
    in_.erase(rank);
    settle();
  }
  Result<FormedGroup> form(uint32_t rank, uint64_t after, AveragingMember where) {
    std::unique_lock lock(mutex_);
    where.rank = Rank{rank};
    waiting_[rank] = where;
    formed_.erase(rank);
    after_[rank] = after;
    changed_.notify_all();
    settle();
    const bool formed = changed_.wait_for(lock, kWaitMost, [&] { return formed_.contains(rank); });
    if (!formed) return Error{ErrorCode::deadlineExceeded, "no group came about"};
    return formed_[rank];
  }
  /// Whether a trainer waits for the current group to end.
  bool wanted() {
    const std::lock_guard lock(mutex_);
    return !waiting_.empty();
  }
  bool untilWanted() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kWaitMost, [&] { return !waiting_.empty(); });
  }
  /// Calls on the state that the clients share, one at a time.
  template <class Call>
  auto with(Call call) {
    const std::lock_guard lock(mutex_);
    return call(daemon_);
  }

 private:
  void settle() {
    if (waiting_.empty() || waiting_.size() < in_.size()) return;
    reached_[generation_] = Version{daemon_.version};
    FormedGroup group{.generation = ++generation_};
    for (const auto& [rank, where] : waiting_) group.members.push_back(where);
    for (const auto& [rank, where] : waiting_) {
      group.reached = after_[rank] == 0 ? Version{} : reached_[after_[rank]];
      formed_[rank] = group;
      group.index++;
    }
    waiting_.clear();
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  FakeDaemon daemon_;
  uint64_t generation_ = 0;
  std::set<uint32_t> in_;
  std::map<uint32_t, AveragingMember> waiting_;
  std::map<uint32_t, FormedGroup> formed_;
  std::map<uint32_t, uint64_t> after_;
  std::map<uint64_t, Version> reached_;
};

/// Owned by one thread.
class GroupClient final : public FakeClient, private GradientAveraging {
 public:
  GroupClient(GroupDaemon& daemon, FakeDaemon& unused, uint32_t rank)
      : FakeClient(unused), daemon_(daemon), rank_(rank) {
    daemon_.in(rank);
  }
  ~GroupClient() override { daemon_.gone(rank_); }

  Pending<PullInfo> pull(ArenaValues destination, RowBatch*) override {
    return daemon_.with([&](FakeDaemon& daemon) { return FakeClient(daemon).pull(destination, nullptr); });
  }
  Pending<PushInfo> push(Step step, ConstArenaValues gradient, GradientInfo behind,
                         const std::vector<Version>& basis, const RowBatch*) override {
    return daemon_.with(
        [&](FakeDaemon& daemon) { return FakeClient(daemon).push(step, gradient, behind, basis, nullptr); });
  }
  GradientAveraging* gradientAveraging() override { return this; }
  Pending<RoundDue> roundDue(Version) override {
    class Wanted : public Pending<RoundDue>::Impl {
     public:
      explicit Wanted(GroupDaemon& daemon) : daemon_(daemon) {}
      bool done() const override { return daemon_.wanted(); }
      Result<RoundDue> wait() override { return RoundDue::groupWanted; }

     private:
      GroupDaemon& daemon_;
    };
    return Pending<RoundDue>(std::make_unique<Wanted>(daemon_));
  }
  Result<FormedGroup> formAveragingGroup(uint64_t after, const AveragingMember& where) override {
    return daemon_.form(rank_, after, where);
  }

 private:
  GroupDaemon& daemon_;
  const uint32_t rank_;
};

/// One trainer: a model with its own initial values, and what it needs to average.
struct Trainer {
  Trainer(GroupDaemon& daemon, uint32_t rank, milliseconds timeout)
      : rank(rank),
        client(daemon, unused, rank),
        maker(*makeGlooGroups("")),
        steps(client, model, *maker, {timeout, 4096}) {
    std::ranges::fill(model.parameters(), 100.f + static_cast<float>(rank));
  }

  /// A step with a gradient that is `rank + 1` everywhere, of `rank + 1` samples.
  Result<AveragedSteps::Outcome> step(bool last = false) {
    std::ranges::fill(model.gradients(), static_cast<float>(rank + 1));
    return steps.step(rank + 1, last, Step{++number});
  }
  std::vector<float> values() { return {model.parameters().begin(), model.parameters().end()}; }

  const uint32_t rank;
  FakeDaemon unused;
  SoftmaxModel model;
  GroupClient client;
  std::unique_ptr<CollectiveMaker> maker;
  AveragedSteps steps;
  uint64_t number = 0;
};

/// Runs it for each of these trainers on its own thread, and waits for all.
template <class Work>
void together(const std::vector<Trainer*>& trainers, Work work) {
  std::vector<std::jthread> threads;
  for (Trainer* const trainer : trainers) threads.emplace_back([trainer, work] { work(*trainer); });
}

void getReady(const std::vector<Trainer*>& trainers) {
  std::vector<Status> ready(trainers.size());
  std::atomic<size_t> next = 0;
  together(trainers, [&](Trainer& trainer) { ready[next++] = trainer.steps.ready(); });
  for (const Status& each : ready) PSD_REQUIRE_OK(each);
}

/// The outcome of a step of all of these.
std::vector<bool> step(const std::vector<Trainer*>& trainers) {
  std::map<uint32_t, Result<AveragedSteps::Outcome>> outcomes;
  std::mutex mutex;
  together(trainers, [&](Trainer& trainer) {
    auto outcome = trainer.step();
    const std::lock_guard lock(mutex);
    outcomes.emplace(trainer.rank, std::move(outcome));
  });
  std::vector<bool> counted;
  for (auto& [rank, outcome] : outcomes) {
    PSD_REQUIRE_OK(outcome);
    counted.push_back(outcome->counted);
  }
  return counted;
}

void checkEqual(GroupDaemon& daemon, const std::vector<Trainer*>& trainers) {
  const std::vector<float> values = daemon.with([](FakeDaemon& daemon) { return daemon.values; });
  for (Trainer* const trainer : trainers) {
    INFO("rank " << trainer->rank);
    REQUIRE(trainer->values() == values);
  }
}

std::vector<float> beginning() {
  std::vector<float> values(SoftmaxModel().parameters().size());
  for (size_t i = 0; i < values.size(); i++) values[i] = static_cast<float>(i % 97) / 8;
  return values;
}

}  // namespace

TEST_CASE("averaged steps: members have the daemon's parameters when their group forms and after each step") {
  GroupDaemon daemon(beginning());
  Trainer a(daemon, 0, kWaitMost), b(daemon, 1, kWaitMost), c(daemon, 2, kWaitMost);
  const std::vector<Trainer*> all = {&a, &b, &c};
  getReady(all);
  checkEqual(daemon, all);
  CHECK(a.values() == beginning());
  for (int i = 0; i < 3; i++) {
    CHECK(step(all) == std::vector<bool>(3, true));
    checkEqual(daemon, all);
  }
  // The mean by samples of 1, 2 and 3 is 14/6; the rate 0.1.
  CHECK(a.values().front() == Approx(beginning().front() - 3 * 0.1 * 14 / 6));
  CHECK(daemon.with([](FakeDaemon& daemon) { return daemon.samples; }) == std::vector<uint32_t>(3, 6));
  CHECK(daemon.with([](FakeDaemon& daemon) { return daemon.steps; }) == std::vector<uint64_t>{1, 2, 3});
}

TEST_CASE(
    "averaged steps: a trainer that joins gets the daemon's parameters, and waits for one step at most") {
  GroupDaemon daemon(beginning());
  Trainer a(daemon, 1, kWaitMost), b(daemon, 2, kWaitMost);
  getReady({&a, &b});
  CHECK(step({&a, &b}) == std::vector<bool>(2, true));
  Trainer joining(daemon, 0, kWaitMost);  // which will be the first
  Status ready;
  {
    const std::jthread comes([&] { ready = joining.steps.ready(); });
    REQUIRE(daemon.untilWanted());
    CHECK(step({&a, &b}) == std::vector<bool>(2, true));  // the last one of their group
    getReady({&a, &b});
  }
  PSD_REQUIRE_OK(ready);
  checkEqual(daemon, {&joining, &a, &b});
  CHECK(step({&joining, &a, &b}) == std::vector<bool>(3, true));
  checkEqual(daemon, {&joining, &a, &b});
}

TEST_CASE("averaged steps: a step broken by a silent member is discarded, and the others are equal again") {
  GroupDaemon daemon(beginning());
  Trainer a(daemon, 0, kSilence), b(daemon, 1, kSilence);
  auto silent = std::make_unique<Trainer>(daemon, 2, kSilence);
  const std::vector<Trainer*> others = {&a, &b};
  getReady({&a, &b, silent.get()});
  CHECK(step({&a, &b, silent.get()}) == std::vector<bool>(3, true));
  const uint64_t before = daemon.with([](FakeDaemon& daemon) { return daemon.version; });
  {
    const std::jthread leaves([&] {  // once the others have abandoned it, like the daemon
      daemon.untilWanted();
      daemon.gone(2);
    });
    CHECK(step(others) == std::vector<bool>(2, false));
  }
  checkEqual(daemon, others);
  CHECK(daemon.with([](FakeDaemon& daemon) { return daemon.version; }) == before);
  CHECK(step(others) == std::vector<bool>(2, true));
  checkEqual(daemon, others);
}

TEST_CASE("averaged steps: a trainer that takes its last step leaves the others a group of their own") {
  GroupDaemon daemon(beginning());
  Trainer a(daemon, 0, kWaitMost), b(daemon, 1, kWaitMost);
  auto leaver = std::make_unique<Trainer>(daemon, 2, kWaitMost);
  getReady({&a, &b, leaver.get()});
  std::array<bool, 3> counted{};
  together({&a, &b, leaver.get()}, [&](Trainer& trainer) {
    const auto outcome = trainer.step(trainer.rank == 2);
    counted[trainer.rank] = outcome.ok() && outcome->counted;
  });
  CHECK(counted == std::array<bool, 3>{true, true, true});
  leaver.reset();
  getReady({&a, &b});
  CHECK(step({&a, &b}) == std::vector<bool>(2, true));
  checkEqual(daemon, {&a, &b});
}

}  // namespace psd::averaged_steps_test

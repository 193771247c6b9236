// A process that dies leaves what it had written, synced or not, to the next one: the system's memory
// outlives it. Only a later failure of the machine shows which part was on the disk.

#include <vector>

#include "test/support/catch.h"
#include "test/unit/server/checkpoint/daemon_life.h"

namespace psd::process_death_test {
namespace {

using namespace testing;

constexpr Survival kPowerFailures[] = {Survival::syncedOnly, Survival::everything, Survival::namesWithZeros,
                                       Survival::namesWithHalfData, Survival::namesWithLateData};

/// Counting pushes to the first shard, and which of them were answered.
struct Account {
  float answered = 0, attempted = 0;

  void push(TestLoop& loop, MemoryEnv& env, Life& daemon, uint64_t step) {
    const auto logged = testing::push(*daemon.store, 0, countingGradient(*daemon.store, 0), Step{step});
    attempted++;
    loop.wait(daemon.store->shard(0).whenDurable(logged));
    if (!env.crashed()) answered++;
  }
  /// A daemon resumes: a push repeated to it that it has found is answered immediately as applied.
  bool resume(MemoryEnv& env, Life& daemon) {
    if (!daemon.store || !daemon.begin() || env.crashed()) return false;
    answered = counts(*daemon.store)[0];
    return true;
  }
  void check(MemoryEnv& env) const {
    const Life after(env);
    REQUIRE(after.store);
    REQUIRE(counts(*after.store)[0] >= answered);
    REQUIRE(counts(*after.store)[0] <= attempted);
  }
};

TEST_CASE("a daemon started after a process died makes what it found durable before it answers") {
  const Survival survival = GENERATE(from_range(std::begin(kPowerFailures), std::end(kPowerFailures)));
  const unsigned appended = GENERATE(0u, 7u, 16u);
  TestLoop loop;
  bool done = false;
  for (uint64_t point = 0; !done; point++) {
    MemoryEnv env;
    env.crashAt(point, appended);
    Account account;
    if (Life daemon(env); account.resume(env, daemon)) {
      for (uint64_t step = 1; step <= 2; step++) account.push(loop, env, daemon, step);
      static_cast<void>(daemon.durability->finish());
    }
    done = !env.crashed();
    env.restartProcess();
    const bool pushes = point % 2 == 0;  // later pushes are synced, whatever happened to earlier ones
    if (Life daemon(env); account.resume(env, daemon) && pushes) account.push(loop, env, daemon, 3);
    env.restart(survival);
    INFO("operation " << point << ", survival " << static_cast<int>(survival));
    account.check(env);
  }
}

TEST_CASE("nor is anything lost if that daemon dies as well, at any operation, before the power fails") {
  const Survival survival = GENERATE(Survival::syncedOnly, Survival::namesWithHalfData);
  const unsigned appended = GENERATE(7u, 16u);
  TestLoop loop;
  bool done = false;
  for (uint64_t point = 0; !done; point++) {
    bool recovered = false;
    for (uint64_t second = 0; !recovered && !done; second++) {
      MemoryEnv env;
      env.crashAt(point, appended);
      Account account;
      if (Life daemon(env); account.resume(env, daemon)) {
        for (uint64_t step = 1; step <= 2; step++) account.push(loop, env, daemon, step);
      }
      done = !env.crashed();
      env.restartProcess();
      env.crashAt(second, appended);
      if (Life daemon(env); account.resume(env, daemon)) account.push(loop, env, daemon, 3);
      recovered = !env.crashed();
      env.restartProcess();
      if (Life daemon(env); account.resume(env, daemon)) account.push(loop, env, daemon, 4);
      env.restart(survival);
      INFO("operation " << point << ", then " << second << ", survival " << static_cast<int>(survival));
      account.check(env);
    }
  }
}

TEST_CASE("a write whose sync failed is rewritten by the daemon that reads it, whatever later syncs report") {
  MemoryEnv env;
  TestLoop loop;
  Account account;
  auto config = logConfig();
  {
    Life daemon(env, 2, config);
    REQUIRE(account.resume(env, daemon));
    account.push(loop, env, daemon, 1);
    env.fail({"sync", "create"}, "Input/output error");
    account.push(loop, env, daemon, 2);  // answered as one that is not on the disk
  }
  env.heal();
  env.restartProcess();
  {
    Life daemon(env, 2, config);
    REQUIRE(account.resume(env, daemon));
    REQUIRE(account.answered == 2);
    account.push(loop, env, daemon, 3);
  }
  env.restart(Survival::everything);
  account.check(env);
}

}  // namespace
}  // namespace psd::process_death_test

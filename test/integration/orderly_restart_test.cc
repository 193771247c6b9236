// A daemon that received SIGTERM in the middle of a gradient, and calls that arrive before it has restarted.

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "test/integration/daemon_process.h"
#include "test/integration/raw_trainer.h"
#include "test/support/catch.h"

namespace psd::orderly_restart_test {
namespace {

using namespace testing;

constexpr char kRestarts[] = "stopping: SIGTERM; trainers wait for the next daemon";
constexpr auto kMinute = std::chrono::minutes(1);

/// A daemon under `sync` with a log and two trainers. SIGTERM arrived when one of them had contributed to the
/// open round and the other was half done; the daemon waits for the rest. Owned by one thread.
class Restarting {
 public:
  Restarting() {
    daemon.start({R"(policy={"type":"sync","round_timeout_ms":300})", R"(optimizer={"type":"sgd","lr":1})",
                  "shards=2", "exit_when_done=true", "limits.drain_ms=60000", "membership.lease_ms=86400000",
                  R"(durability={"type":"log","path":")" + folder.file("saved") + R"("})"});
    first = std::make_unique<RawTrainer>(io, daemon.address(), 0, 2);
    first->initializeZeros();
    second = std::make_unique<RawTrainer>(io, daemon.address(), 1, 2);
    PSD_REQUIRE_OK(second->awaitModel());
    notices_.push_back(first->session().noticeRequest().send());
    notices_.push_back(second->session().noticeRequest().send());
    begin();
    daemon.signal(SIGTERM);
    daemon.untilLogged(kRestarts);
  }

  /// Enough time for any round that the clock closes.
  void outlastRounds() {
    const double began = daemon.status()["uptime_seconds"];
    daemon.statusWhen([&](const auto& status) { return status["uptime_seconds"] > began + 1; });
  }

  /// Sends the rest of the half gradient. Returns the outcomes of the round's two gradients.
  std::vector<schema::PushOutcome> complete() {
    const std::vector<float> rest(kSlicesOfShard[1].second, -1.f);
    auto last = second->startPush({1, 1, kSlicesOfShard[1].first}, dataOf(rest));
    std::vector<schema::PushOutcome> outcomes;
    for (auto* push : {waiting_.get(), &last}) {
      auto answer = first->peer().wait(push->dropPipeline());
      REQUIRE(answer.isAccepted());
      outcomes.push_back(answer.getAccepted().getOutcome());
    }
    return outcomes;
  }

  /// Both are notified of it.
  bool reportsRestart() {
    std::vector<bool> back;
    for (auto& notice : notices_) {
      auto told = first->peer().wait(notice.dropPipeline());
      REQUIRE(told.getShuttingDown());
      back.push_back(told.getRestarting());
    }
    REQUIRE(back[0] == back[1]);
    first.reset();
    second.reset();
    return back[0];
  }

  const TempDir folder;
  DaemonProcess daemon{folder};
  kj::AsyncIoContext io = kj::setupAsyncIo();
  std::unique_ptr<RawTrainer> first, second;

 private:
  /// A whole gradient, whose last slice waits for the round, and most of another one.
  void begin() {
    for (auto* trainer : {first.get(), second.get()}) {
      for (const uint32_t shard : {0u, 1u}) {
        for (const auto& [offset, count] : kSlicesOfShard) {
          const bool last = shard == 1 && offset > 0;
          const std::vector<float> values(count, -1.f);
          if (!last) PSD_REQUIRE_OK(trainer->push({1, shard, offset}, values));
          if (last && trainer == first.get()) {
            waiting_ = std::make_unique<capnp::RemotePromise<schema::PushResult>>(
                trainer->startPush({1, shard, offset}, dataOf(values)));
          }
        }
      }
    }
  }

  std::vector<capnp::RemotePromise<schema::Trainer::NoticeResults>> notices_;
  std::unique_ptr<capnp::RemotePromise<schema::PushResult>> waiting_;
};

using schema::PushOutcome;

TEST_CASE(
    "a daemon that restarts takes the rest of what has begun, and its clock closes no round meanwhile") {
  Restarting restart;
  restart.outlastRounds();
  CHECK(restart.daemon.status()["shards"][0]["version"] == 0);
  CHECK(restart.complete() == std::vector{PushOutcome::APPLIED, PushOutcome::APPLIED});
  CHECK(restart.reportsRestart());
  CHECK(restart.daemon.wait() == 0);
}

TEST_CASE("a daemon that restarts refuses to reload") {
  Restarting restart;
  const auto refused =
      std::async(std::launch::async, [&] {
        return reloadDaemon(parseAddress(restart.daemon.address()).value(), kMinute).status();
      }).get();
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::shuttingDown);
  restart.complete();
  CHECK(restart.reportsRestart());
  CHECK(restart.daemon.wait() == 0);
}

TEST_CASE("psd stop ends the run of a daemon that restarts") {
  Restarting restart;
  auto stopped = std::async(std::launch::async, [&] {
    return stopDaemon(parseAddress(restart.daemon.address()).value(), "enough", kMinute);
  });
  restart.daemon.untilLogged("the run ends with the daemon: asked by");
  restart.complete();
  CHECK_FALSE(restart.reportsRestart());
  PSD_REQUIRE_OK(stopped.get());
  CHECK(restart.daemon.wait() == 0);
}

TEST_CASE("SIGINT ends the run of a daemon that restarts") {
  Restarting restart;
  restart.daemon.signal(SIGINT);
  restart.daemon.untilLogged("the run ends with the daemon: SIGINT");
  restart.complete();
  CHECK_FALSE(restart.reportsRestart());
  CHECK(restart.daemon.wait() == 0);
}

}  // namespace
}  // namespace psd::orderly_restart_test

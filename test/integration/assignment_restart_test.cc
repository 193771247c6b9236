// Samples that the daemon assigns, across crashes of the daemon. Every gradient is minus the number of its
// samples and the learning rate 1, so that each parameter counts the samples that are in the model.

#include <chrono>
#include <csignal>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "common/types/model_layout.h"
#include "test/integration/daemon_process.h"
#include "test/integration/raw_trainer.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"
#include "trainer/client/api/client.h"

namespace psd::assignment_restart_test {
namespace {

using testing::DaemonProcess;
using testing::TempDir;
using What = AssignedSamples::What;
using Json = nlohmann::ordered_json;

constexpr uint64_t kSamples = 200, kEpochs = 6;
constexpr uint32_t kBatch = 5;

std::vector<std::string> settingsFor(const TempDir& folder, const std::string& durability, int shards) {
  return {"policy.type=locked",
          "optimizer.type=sgd",
          "optimizer.lr=1",
          "limits.slice_bytes=4096",
          "shards=" + std::to_string(shards),
          R"(durability={"type": ")" + durability + R"(", "path": ")" + folder.file("saved") +
              R"(", "every_updates": 20})"};
}

/// A trainer that reconnects to the daemon automatically. Owned by one thread.
class Worker {
 public:
  Worker(const DaemonProcess& daemon, uint32_t rank) {
    ClientOptions options;
    options.servers = {daemon.address()};
    options.retryTimeout = std::chrono::minutes(2);
    auto client = Client::connect(options);
    PSD_REQUIRE_OK(client);
    client_ = *std::move(client);
    PSD_REQUIRE_OK(
        client_->join({Rank{rank}, 2}, testing::model(), [&] { return std::span<const float>(zeros_); }));
  }

  Result<AssignedSamples> take(bool wait = false) {
    return client_->takeSamples({Step{step_ + 1}, kBatch, kSamples, kEpochs, 0, wait});
  }
  Result<PushInfo> push(const AssignedSamples& assigned) {
    PSD_ASSIGN_OR_RETURN(const PullInfo pulled, client_->pull(values_).wait());
    const std::vector<float> gradient(zeros_.size(), -static_cast<float>(assigned.count));
    return client_->push(Step{++step_}, gradient, assigned.count, pulled.versions).wait();
  }
  Status workUntilDone() {
    for (;;) {
      PSD_ASSIGN_OR_RETURN(const AssignedSamples assigned, take(true));
      if (assigned.what == What::finished) return {};
      PSD_RETURN_IF_ERROR(push(assigned).status());
    }
  }
  /// The count that every parameter has; −1: they differ.
  Result<float> count() {
    PSD_RETURN_IF_ERROR(client_->pull(values_).wait().status());
    return values_ == std::vector<float>(values_.size(), values_[0]) ? values_[0] : -1;
  }
  Status leave() { return client_->leave(); }

 private:
  const std::vector<float> zeros_ = std::vector<float>(ModelLayout(testing::model()).totalElements(), 0.0f);
  std::vector<float> values_ = zeros_;
  std::unique_ptr<Client> client_;
  uint64_t step_ = 0;
};

void waitUntilDone(const DaemonProcess& daemon, uint64_t samples) {
  daemon.statusWhen([samples](const Json& status) {
    return !status["samples"].is_null() && status["samples"]["done"] >= samples;
  });
}

TEST_CASE("every sample of every epoch is in the model once, however often the daemon is killed") {
  struct Way {
    const char* durability;
    int shards;  // with checkpoints alone a crash leaves shards at different updates
  };
  for (const Way& way : {Way{"log", 3}, Way{"checkpoint", 1}}) {
    INFO(way.durability);
    TempDir folder;
    DaemonProcess daemon(folder);
    const auto settings = settingsFor(folder, way.durability, way.shards);
    daemon.start(settings);
    std::vector<std::future<Status>> working;
    std::promise<void> checked;
    const std::shared_future<void> mayLeave = checked.get_future().share();
    for (uint32_t rank : {0, 1}) {
      // Created here: Catch2 accepts assertions from one thread only.
      auto worker = std::make_shared<Worker>(daemon, rank);
      working.push_back(std::async(std::launch::async, [worker, mayLeave]() -> Status {
        // A daemon that dies when all samples are done may resume from an earlier state.
        for (int look = 0; look < 18000; look++) {
          PSD_RETURN_IF_ERROR(worker->workUntilDone());
          if (mayLeave.wait_for(std::chrono::milliseconds(10)) == std::future_status::ready) break;
        }
        PSD_ASSIGN_OR_RETURN(const float count, worker->count());
        PSD_RETURN_IF_ERROR(worker->leave());
        if (count == kSamples * kEpochs) return {};
        return {ErrorCode::internal, "the model counts " + std::to_string(count)};
      }));
    }
    for (uint64_t death = 1; death <= 4; death++) {
      waitUntilDone(daemon, death * kSamples * kEpochs / 5);
      daemon.kill(SIGKILL);
      daemon.start(settings);
    }
    waitUntilDone(daemon, kSamples * kEpochs);
    checked.set_value();
    for (auto& each : working) {
      REQUIRE(each.wait_for(std::chrono::minutes(3)) == std::future_status::ready);
      PSD_REQUIRE_OK(each.get());
    }
    CHECK(daemon.status()["samples"]["done"] == kSamples * kEpochs);
  }
}

TEST_CASE("what a trainer has when the daemon dies waits for it, and goes to others when it does not come") {
  const bool comes = GENERATE(true, false);
  TempDir folder;
  DaemonProcess daemon(folder);
  auto settings = settingsFor(folder, "log", 1);
  settings.push_back(std::string("membership.grace_ms=") + (comes ? "86400000" : "0"));
  daemon.start(settings);
  auto absent = std::make_unique<Worker>(daemon, 0);
  Worker other(daemon, 1);
  const auto held = absent->take();
  PSD_REQUIRE_OK(held);
  for (int i = 0; i < 3; i++) {  // by then that assignment is on the disk
    const auto assigned = other.take();
    PSD_REQUIRE_OK(assigned);
    PSD_REQUIRE_OK(other.push(*assigned));
  }
  daemon.kill(SIGKILL);
  if (!comes) absent = nullptr;
  daemon.start(settings);
  const auto next = other.take();
  PSD_REQUIRE_OK(next);
  if (comes) {
    CHECK(next->begin == 4 * kBatch);
    PSD_REQUIRE_OK(other.push(*next));
    const auto answer = absent->push(*held);
    PSD_REQUIRE_OK(answer);
    CHECK(answer->outcome == PushOutcome::applied);
    CHECK(absent->count().value() == 5 * kBatch);
  } else {
    PSD_REQUIRE_OK(other.push(*next));
    PSD_REQUIRE_OK(other.workUntilDone());
    CHECK(other.count().value() == kSamples * kEpochs);
  }
}

TEST_CASE("samples whose gradient is in one shard when the daemon dies are done, though the other drops it") {
  TempDir folder;
  DaemonProcess daemon(folder);
  auto settings = settingsFor(folder, "log", 2);
  settings.push_back(R"(policy.staleness={"max": 0})");
  daemon.start(settings);
  auto io = kj::setupAsyncIo();
  const auto push = [](testing::RawTrainer& trainer, uint32_t shard) {
    return trainer.pushShard(shard, -float{kBatch}).outcome;
  };
  testing::RawLife life{.incarnation = 7};
  {
    testing::RawTrainer before(io, daemon.address(), 0, 2, life);
    before.initializeZeros();
    auto request = before.session().takeSamplesRequest();
    request.setStep(1);
    request.setCount(kBatch);
    request.setSamples(kSamples);
    request.setEpochs(kEpochs);
    auto answer = before.peer().wait(request.send().dropPipeline());
    REQUIRE(answer.isAssigned());
    life.held = {{Step{1}, {answer.getAssigned().getEpoch(), answer.getAssigned().getBegin(), kBatch}}};
    life.daemon = before.daemon();
    CHECK(push(before, 0) == schema::PushOutcome::APPLIED);
    daemon.kill(SIGKILL);
  }
  daemon.start(settings);
  testing::RawTrainer after(io, daemon.address(), 0, 2, life);
  CHECK(after.daemon() != life.daemon);
  Worker other(daemon, 1);
  const auto assigned = other.take();
  PSD_REQUIRE_OK(assigned);
  PSD_REQUIRE_OK(other.push(*assigned));
  CHECK(push(after, 0) == schema::PushOutcome::APPLIED);  // as the previous daemon
  CHECK(push(after, 1) == schema::PushOutcome::STALE);
  waitUntilDone(daemon, 2 * kBatch);
}

TEST_CASE(
    "a plan that was finished when the daemon died ends its trainers, and new ones unless that is the run") {
  const bool oneRun = GENERATE(false, true);
  TempDir folder;
  DaemonProcess daemon(folder);
  auto settings = settingsFor(folder, "log", 2);
  settings.push_back(std::string("exit_when_done=") + (oneRun ? "true" : "false"));
  daemon.start(settings);
  Worker worker(daemon, 0);
  PSD_REQUIRE_OK(worker.workUntilDone());
  daemon.kill(SIGKILL);
  daemon.start(settings);
  CHECK(worker.count().value() == kSamples * kEpochs);
  auto again = worker.take();
  PSD_REQUIRE_OK(again);
  CHECK(again->what == What::finished);
  Worker fresh(daemon, 1);
  again = fresh.take();
  PSD_REQUIRE_OK(again);
  CHECK(again->what == (oneRun ? What::finished : What::range));
  if (!oneRun) return;
  PSD_REQUIRE_OK(worker.leave());
  PSD_REQUIRE_OK(fresh.leave());
  CHECK(daemon.wait() == 0);
  daemon.start(settings);  // a new run
  Worker next(daemon, 0);
  again = next.take();
  PSD_REQUIRE_OK(again);
  CHECK(again->what == What::range);
  CHECK(again->begin == 0);
}

}  // namespace
}  // namespace psd::assignment_restart_test

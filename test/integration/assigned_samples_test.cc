// Samples that the daemon assigns. Every gradient is minus the number of its samples and the learning rate 1,
// so that each parameter counts the samples that are in the model.

#include <cmath>
#include <future>
#include <string>
#include <vector>

#include "common/types/model_layout.h"
#include "test/integration/raw_trainer.h"
#include "test/support/catch.h"
#include "test/support/local_server.h"
#include "trainer/client/api/client.h"

namespace psd::assigned_samples_test {
namespace {

using testing::LocalServer;
using Json = nlohmann::ordered_json;

constexpr uint64_t kSamples = 100, kEpochs = 3, kDayMs = 86'400'000;
constexpr uint32_t kBatch = 8;

Json configOf(const std::string& policy) {
  // One shard: a gradient is in the model as a whole or not.
  return {{"shards", 1},
          {"policy", {{"type", policy}}},
          {"optimizer", {{"type", "sgd"}, {"lr", 1.0}}},
          {"membership", {{"lease_ms", kDayMs}, {"grace_ms", 0}}}};
}

/// A trainer with a step count of its own. Owned by one thread.
class Worker {
 public:
  Worker(const LocalServer& server, uint32_t rank, uint32_t worldSize) {
    ClientOptions options;
    options.servers = {server.address()};
    auto client = Client::connect(options);
    PSD_REQUIRE_OK(client);
    client_ = *std::move(client);
    PSD_REQUIRE_OK(client_->join({Rank{rank}, worldSize}, testing::model(),
                                 [&] { return std::span<const float>(zeros_); }));
  }

  /// Requests a batch whose size the daemon chooses.
  Result<AssignedSamples> takeSized(double sampleSeconds, uint32_t nominal = kBatch) {
    return client_->takeSamples(
        {Step{step_ + 1}, 4 * kBatch, kSamples, kEpochs, 0, false, nominal, sampleSeconds});
  }
  Result<AssignedSamples> take(bool wait = false, uint64_t epochs = kEpochs) {
    return client_->takeSamples({Step{step_ + 1}, kBatch, kSamples, epochs, 0, wait});
  }
  /// Pushes the gradient of the assigned samples.
  Result<PushInfo> push(const AssignedSamples& assigned) {
    PSD_ASSIGN_OR_RETURN(const PullInfo pulled, client_->pull(values_).wait());
    const std::vector<float> gradient(zeros_.size(), -static_cast<float>(assigned.count));
    return client_->push(Step{++step_}, gradient, assigned.count, pulled.versions).wait();
  }
  /// Works until all samples are done; returns the number of its samples that were applied.
  Result<uint64_t> workUntilDone() {
    for (uint64_t had = 0;;) {
      PSD_ASSIGN_OR_RETURN(const AssignedSamples assigned, take(true));
      if (assigned.what == AssignedSamples::What::finished) return had;
      PSD_ASSIGN_OR_RETURN(const PushInfo pushed, push(assigned));
      if (pushed.outcome == PushOutcome::applied) had += assigned.count;  // or others get them
    }
  }
  Status leave() { return client_->leave(); }
  Client& client() { return *client_; }
  const std::vector<float>& values() const { return values_; }

 private:
  const std::vector<float> zeros_ = std::vector<float>(ModelLayout(testing::model()).totalElements(), 0.0f);
  std::vector<float> values_ = zeros_;
  std::unique_ptr<Client> client_;
  uint64_t step_ = 0;
};

void checkCounts(const LocalServer& server) {
  Worker reader(server, 0, 3);
  std::vector<float> values(reader.values().size());
  PSD_REQUIRE_OK(reader.client().pull(values).wait());
  CHECK(values == std::vector<float>(values.size(), static_cast<float>(kSamples * kEpochs)));
}

/// Workers of these ranks that work to the end and leave, each on a thread of its own.
std::vector<std::future<Result<uint64_t>>> startWorkers(const LocalServer& server, uint32_t count) {
  std::vector<std::future<Result<uint64_t>>> working;
  for (uint32_t rank = 0; rank < count; rank++) {
    // Created here: Catch2 accepts assertions from one thread only.
    auto worker = std::make_shared<Worker>(server, rank, 3);
    working.push_back(std::async(std::launch::async, [worker]() -> Result<uint64_t> {
      auto had = worker->workUntilDone();
      PSD_RETURN_IF_ERROR(worker->leave());
      return had;
    }));
  }
  return working;
}

/// The total number of their samples.
uint64_t samplesOf(std::vector<std::future<Result<uint64_t>>>& working) {
  uint64_t all = 0;
  for (auto& each : working) {
    REQUIRE(each.wait_for(std::chrono::minutes(1)) == std::future_status::ready);
    auto samples = each.get();
    PSD_REQUIRE_OK(samples);
    all += *samples;
  }
  return all;
}

TEST_CASE("a trainer that is lost while its gradient waits for others, and comes back, keeps its samples") {
  Json config = configOf("sync");
  config["policy"]["start_trainers"] = 2;
  config["limits"] = {{"slice_bytes", testing::kElements * sizeof(float)}};
  LocalServer server(config);
  auto io = kj::setupAsyncIo();
  const std::vector<float> gradient(testing::kElements, -8.f);
  const auto pushed = [&](testing::RawTrainer& trainer) {
    auto waiting = trainer.startPush({}, testing::dataOf(gradient));
    trainer.peer().wait(trainer.peer().reading().pingRequest().send().ignoreResult());
    return waiting;
  };
  testing::RawTrainer other(io, server, 1, 2, {.incarnation = 8});
  PSD_REQUIRE_OK(other.initialize(0, 0, std::vector<float>(testing::kElements)));
  PSD_REQUIRE_OK(other.initialized());
  uint64_t daemon = 0;
  {
    testing::RawTrainer trainer(io, server, 0, 2, {.incarnation = 7});
    PSD_REQUIRE_OK(trainer.awaitModel());
    CHECK(trainer.takeSamples(1, kBatch, kSamples, kEpochs) == SampleRange{0, 0, kBatch});
    daemon = trainer.daemon();
    const auto waiting = pushed(trainer);
    server.statusWhen([](const Json& now) { return now["waiting"].size() == 1; });
  }
  server.statusWhen([](const Json& now) { return now["trainers_lost"] == 1; });
  testing::RawTrainer back(io, server, 0, 2, {.incarnation = 7, .daemon = daemon});
  auto waiting = pushed(back);
  CHECK(other.takeSamples(1, kBatch, kSamples, kEpochs) == SampleRange{0, kBatch, kBatch});
  auto others = pushed(other);
  for (auto* answer : {&waiting, &others}) {
    CHECK(back.peer().wait(answer->dropPipeline()).getAccepted().getOutcome() ==
          schema::PushOutcome::APPLIED);
  }
  server.statusWhen([](const Json& now) { return now["samples"]["done"] == 2 * kBatch; });
  CHECK(back.takeSamples(2, kBatch, kSamples, kEpochs) == SampleRange{0, 2 * kBatch, kBatch});
}

TEST_CASE("every sample of every epoch is in the model once, though a trainer dies") {
  LocalServer server(configOf("locked"));
  auto doomed = std::make_unique<Worker>(server, 2, 3);
  auto assigned = doomed->take();
  PSD_REQUIRE_OK(assigned);
  CHECK(assigned->count == kBatch);
  PSD_REQUIRE_OK(doomed->push(*assigned));
  PSD_REQUIRE_OK(doomed->take());  // it dies with these
  auto working = startWorkers(server, 2);
  // They do the rest, and wait for the samples of the lost one.
  server.statusWhen(
      [](const Json& status) { return status["samples"]["done"] == kSamples * kEpochs - kBatch; });
  for (auto& each : working) CHECK(each.wait_for(std::chrono::seconds(0)) != std::future_status::ready);
  doomed = nullptr;
  CHECK(samplesOf(working) == kSamples * kEpochs - kBatch);
  checkCounts(server);
}

TEST_CASE("a trainer without samples delays no other, whatever the policy") {
  for (const char* policy : {"locked", "bounded_staleness", "sync"}) {
    INFO(policy);
    Json config = configOf(policy);
    if (std::string(policy) == "bounded_staleness") config["policy"]["bound"] = 0;
    LocalServer server(config);
    auto working = startWorkers(server, 3);
    CHECK(samplesOf(working) == kSamples * kEpochs);
  }
}

TEST_CASE("samples are asked for once per step, and by all alike") {
  LocalServer server(configOf("locked"));
  Worker one(server, 0, 3), two(server, 1, 3);
  const auto first = one.take(), again = one.take(), other = two.take();
  PSD_REQUIRE_OK(first);
  PSD_REQUIRE_OK(again);
  PSD_REQUIRE_OK(other);
  CHECK(again->begin == first->begin);
  CHECK(other->begin == first->begin + kBatch);
  const auto wrong = two.client().takeSamples({Step{9}, kBatch, kSamples + 1, kEpochs, 0, false});
  REQUIRE_FALSE(wrong.ok());
  CHECK(wrong.message() == "this trainer trains 3 epochs of 101 samples; the others train 3 of 100");
  const auto none = two.client().takeSamples({Step{9}, 0, kSamples, kEpochs, 0, false});
  REQUIRE_FALSE(none.ok());
  CHECK(none.error().code == ErrorCode::invalidArgument);
}

TEST_CASE("a join after all is done and all have left starts a new run, unless the daemon serves one run") {
  const bool oneRun = GENERATE(false, true);
  Json config = configOf("locked");
  config["exit_when_done"] = oneRun;
  LocalServer server(config);
  auto first = startWorkers(server, 1);
  CHECK(samplesOf(first) == kSamples * kEpochs);
  server.statusWhen([](const Json& status) { return status["trainers"].empty(); });
  Worker late(server, 1, 3);
  auto assigned = late.take();
  PSD_REQUIRE_OK(assigned);
  CHECK(assigned->what == (oneRun ? AssignedSamples::What::finished : AssignedSamples::What::range));
  if (!oneRun) return;
  assigned = late.take(false, kEpochs + 1);  // another sample plan
  PSD_REQUIRE_OK(assigned);
  CHECK(assigned->what == AssignedSamples::What::range);
  CHECK(assigned->epoch == 0);
}

TEST_CASE("sizes follow the speeds that trainers tell, and the status shows them") {
  LocalServer server(configOf("locked"));
  Worker slow(server, 0, 3), fast(server, 1, 3), fixed(server, 2, 3);
  const auto next = [](Worker& worker, double sampleSeconds) {
    auto assigned = worker.takeSized(sampleSeconds);
    PSD_REQUIRE_OK(assigned);
    PSD_REQUIRE_OK(worker.push(*assigned));
    return assigned->count;
  };
  CHECK(next(slow, 0) == kBatch);
  CHECK(next(fast, 0.001) == kBatch);
  CHECK(next(slow, 0.003) == kBatch / 2);  // shares of 16 as 1 : 3
  CHECK(next(fast, 0.001) == kBatch * 3 / 2);
  const auto other = fixed.take();
  PSD_REQUIRE_OK(other);
  CHECK(other->count == kBatch);
  CHECK(other->scaledByTrainer.empty());
  const Json trainers = server.status()["trainers"];
  CHECK(trainers[0]["batch"] == kBatch / 2);
  CHECK(trainers[0]["nominal_batch"] == kBatch);
  CHECK(trainers[1]["batch"] == kBatch * 3 / 2);
  CHECK(trainers[2]["nominal_batch"] == 0);

  for (const double nonsense : {-1.0, std::nan("")}) {
    const auto refused = slow.takeSized(nonsense);
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().code == ErrorCode::invalidArgument);
  }
  CHECK(slow.takeSized(0.003, kBatch + 1).message() ==
        "this trainer's nominal batch has 9 samples; those of the others have 8");
  PSD_REQUIRE_OK(fast.leave());
  CHECK(next(slow, 0.003) == kBatch);  // alone
}

TEST_CASE("trainers learn where they weigh gradients themselves, also after a reload") {
  Json config = configOf("sync");
  config["shards"] = 2;
  LocalServer server(config);
  Worker worker(server, 0, 3);
  const uint64_t all = worker.values().size();
  using Ranges = std::vector<ElementRange>;
  const auto scaledByTrainer = [&] {
    const auto assigned = worker.takeSized(0);
    PSD_REQUIRE_OK(assigned);
    PSD_REQUIRE_OK(worker.push(*assigned));
    return assigned->scaledByTrainer;
  };
  CHECK(scaledByTrainer() == Ranges{});
  for (const char* policy : {"locked", "hogwild", "bounded_staleness"}) {
    INFO(policy);
    config["policy"] = {{"type", policy}};
    PSD_REQUIRE_OK(server.reload(config));
    CHECK(scaledByTrainer() == Ranges{{0, all}});  // both shards
  }
}

}  // namespace
}  // namespace psd::assigned_samples_test

// Policy diloco in fragments over several daemons, each of which closes its own rounds: behavior of a learner
// when they differ.

#include <memory>
#include <thread>
#include <vector>

#include "common/plan/model_partitions.h"
#include "test/support/catch.h"
#include "test/support/local_servers.h"
#include "trainer/client/rpc_client.h"
#include "trainer/exchange/fragment_exchange.h"

namespace psd::several_diloco_test {
namespace {

using Json = nlohmann::ordered_json;
using testing::LocalServers;
using Values = std::vector<float>;

/// Of two daemons the first one has only rows of `a`: fragment 0 is on both, fragment 1 on the second.
const ModelSpec kModel{"cut", {{"a", DType::f32, {6, 16}}, {"b", DType::f32, {16}}}};
constexpr uint64_t kElements = 112;

Json configOf(Json policy) {
  policy["type"] = "diloco";
  policy["period"] = 4;
  policy["fragments"] = 2;
  return {{"policy", policy},
          {"optimizer", {{"type", "sgd"}, {"lr", 1}}},
          {"durability", {{"type", "log"}}},
          {"threads", 1}};
}

/// A learner whose steps add one to each parameter. Owned by one thread.
class Learner {
 public:
  Learner(const LocalServers& servers, Rank rank, uint32_t worldSize) {
    ClientOptions options;
    options.servers = {servers.last().address()};
    auto made = Client::connect(options);
    PSD_REQUIRE_OK(made);
    client_ = *std::move(made);
    const auto joined =
        client_->join({rank, worldSize}, kModel, [this] { return std::span<const float>(parameters_); });
    PSD_REQUIRE_OK(joined);
    info = *joined;
    exchange_ = std::make_unique<FragmentExchange>(
        *client_, info.local, info.shards,
        FragmentExchange::Observer{
            [this](const PushInfo& answer) { (answer.outcome == PushOutcome::applied ? applied : late)++; },
            [this] { dropped++; }});
    PSD_REQUIRE_OK(exchange_->begin(parameters_, spare_));
  }

  void step() {
    for (float& value : parameters_) value++;
    exchange_->stepped(8);
  }
  /// Takes steps until it receives a notice.
  void awaitNotice() {
    for (int tries = 0; !exchange_->due(false); tries++) {
      REQUIRE(tries < 60'000);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  void exchange() { PSD_REQUIRE_OK(exchange_->exchange(false)); }
  const Values& parameters() const { return parameters_; }
  Client& client() { return *client_; }

  JoinInfo info;
  int applied = 0, late = 0, dropped = 0;

 private:
  std::unique_ptr<Client> client_;
  Values parameters_ = Values(kElements), spare_ = parameters_;
  std::unique_ptr<FragmentExchange> exchange_;
};

/// A trainer that has joined one of two daemons and not yet the other.
class AtOne {
 public:
  AtOne(const LocalServers& servers, uint32_t daemon, Rank rank) {
    options_.servers = {servers.all()[daemon]->address()};
    auto link = Link::make();
    PSD_REQUIRE_OK(link);
    client_ = std::make_unique<RpcClient>(options_, *std::move(link), lock_);
    PSD_REQUIRE_OK(client_->connect(ConnectTimeout(std::chrono::seconds(30))));
    auto partitions = partitionModel(kModel, 2);
    PSD_REQUIRE_OK(partitions);
    values_.resize((*partitions)[daemon].count);
    PSD_REQUIRE_OK(client_->join({rank, 2}, (*partitions)[daemon].spec,
                                 [this] { return std::span<const float>(values_); }));
  }
  Pending<PushInfo> push(uint32_t fragment, uint64_t version) {
    const std::vector<Version> basis(client_->info().shards.size(), Version{version});
    return client_->push(Step{++steps_}, values_, {8, 2, fragment}, basis);
  }

 private:
  ClientOptions options_;
  ClientLock lock_;
  const ClientLock::Hold hold_{lock_};
  std::unique_ptr<RpcClient> client_;
  Values values_;
  uint64_t steps_ = 0;
};

/// By daemon, the number of closed rounds of each of its fragments.
std::vector<std::vector<uint64_t>> closedIn(const LocalServers& servers) {
  std::vector<std::vector<uint64_t>> closed;
  for (const auto& server : servers.all()) {
    auto& own = closed.emplace_back();
    const Json status = server->status();
    for (const Json& rounds : status["rounds"]) own.push_back(rounds["closed"]);
  }
  return closed;
}

TEST_CASE("a learner is notified of a round that one daemon closed without it, and catches up") {
  const LocalServers servers(configOf({{"round_timeout_ms", 300}}), 2);
  Learner learner(servers, Rank{0}, 2);
  CHECK(learner.info.shards.back().begin + learner.info.shards.back().count == kElements);
  CHECK(learner.info.shards.back().group == 1);
  AtOne other(servers, 1, Rank{1});
  learner.step();
  auto early = other.push(0, 0);  // waits for the learner, until the timeout
  PSD_REQUIRE_OK(early.wait());
  learner.awaitNotice();
  learner.exchange();
  CHECK(learner.dropped == 1);
  // The fragment restarts in both daemons' parts; the step count of the other one is kept.
  CHECK(learner.parameters()[0] == 0);
  CHECK(learner.parameters()[95] == 0);
  CHECK(learner.parameters()[96] == 1);
  CHECK(closedIn(servers) == std::vector<std::vector<uint64_t>>{{0}, {1, 0}});
  // From now on the rounds of the two differ by one, and each push is in time for both.
  for (uint64_t round = 0; round < 3; round++) {
    std::vector<Pending<PushInfo>> others;
    for (uint32_t fragment = 0; fragment < 2; fragment++) {
      others.push_back(other.push(fragment, fragment == 0 ? round + 1 : round));
      for (int step = 0; step < 2; step++) {
        learner.step();
        learner.exchange();
      }
    }
    for (auto& push : others) PSD_REQUIRE_OK(push.wait());
  }
  CHECK(learner.applied == 6);
  CHECK(learner.late == 0);
  CHECK(learner.dropped == 1);
  CHECK(closedIn(servers) == std::vector<std::vector<uint64_t>>{{3}, {4, 3}});
}

TEST_CASE("a learner notified by any daemon that its round closes pushes the fragment to all that have it") {
  const LocalServers servers(configOf({{"round_timeout_ms", 600'000}, {"grace_ms", 600'000}, {"quorum", 1}}),
                             2);
  Learner learner(servers, Rank{0}, 2);
  AtOne other(servers, 1, Rank{1});
  learner.step();
  auto push = other.push(0, 0);
  learner.awaitNotice();
  learner.exchange();
  PSD_REQUIRE_OK(push.wait());
  CHECK(learner.applied == 1);
  CHECK(closedIn(servers) == std::vector<std::vector<uint64_t>>{{1}, {1, 0}});
}

TEST_CASE("a daemon takes no partition of which it cannot tell the fragments") {
  const LocalServers servers(configOf({{"round_timeout_ms", 600'000}}), 2);
  auto partitions = partitionModel(kModel, 2);
  PSD_REQUIRE_OK(partitions);
  const auto refusal = [&](const ModelSpec& spec) {
    ClientOptions options;
    options.servers = {servers.lead().address()};
    auto link = Link::make();
    PSD_REQUIRE_OK(link);
    ClientLock lock;
    const ClientLock::Hold hold(lock);
    RpcClient client(options, *std::move(link), lock);
    PSD_REQUIRE_OK(client.connect(ConnectTimeout(std::chrono::seconds(30))));
    const Values values(48);
    return client.join({Rank{0}, 1}, spec, [&] { return std::span<const float>(values); }).message();
  };
  ModelSpec spec = partitions->front().spec;
  spec.whole = nullptr;
  CHECK(refusal(spec).find("policy.fragments: partition 0 of 2 of 'cut' lacks the tensors of the whole "
                           "model") != std::string::npos);
  spec.whole = std::make_shared<const std::vector<TensorSpec>>(
      std::vector<TensorSpec>{{"a", DType::f32, {8, 16}}, {"b", DType::f32, {16}}});
  CHECK(refusal(spec).find("the tensors of partition 0 of 2 do not match those of the whole model "
                           "'cut'") != std::string::npos);
}

}  // namespace
}  // namespace psd::several_diloco_test

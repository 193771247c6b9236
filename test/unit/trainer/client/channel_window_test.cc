// What a channel has in flight at a daemon with a long latency, or with a small answer budget.

#include <algorithm>
#include <memory>
#include <vector>

#include <capnp/rpc-twoparty.h>
#include <kj/async-io.h>

#include "common/plan/shard_plan.h"
#include "common/types/model_layout.h"
#include "common/wire/convert.h"
#include "common/wire/login.h"
#include "schema/psd.capnp.h"
#include "test/support/catch.h"
#include "trainer/client/channel.h"
#include "trainer/client/transport/answer_budget.h"

namespace psd::client_channel_window_test {
namespace {

constexpr uint64_t kSliceElements = 1024, kSliceBytes = kSliceElements * sizeof(float);

ModelSpec model() { return {"far", {{"w", DType::f32, {200 * kSliceElements}}}}; }

/// The calls that a daemon received.
struct ReceivedCalls {
  size_t pulls = 0, open = 0, mostOpen = 0;
};

/// Answers each pull after the latency, in any number.
class FarReader final : public schema::Reader::Server {
 public:
  FarReader(kj::Timer& timer, ReceivedCalls& seen) : timer_(timer), seen_(seen) {}

 protected:
  kj::Promise<void> pull(PullContext context) override {
    seen_.pulls++;
    seen_.mostOpen = std::max(seen_.mostOpen, ++seen_.open);
    return timer_.afterDelay(100 * kj::MILLISECONDS).then([this, context]() mutable {
      seen_.open--;
      const auto params = context.getParams();
      auto slice = context.getResults().initSlice();
      slice.setPull(params.getPull());
      slice.setShard(params.getShard());
      slice.setOffset(params.getOffset());
      slice.setVersion(1);
      slice.initValues(static_cast<kj::uint>(params.getCount() * sizeof(float)));
    });
  }

 private:
  kj::Timer& timer_;
  ReceivedCalls& seen_;
};

class FarReading final : public schema::Reading::Server {
 public:
  FarReading(kj::Timer& timer, ReceivedCalls& seen, uint64_t outgoingBytes)
      : timer_(timer), seen_(seen), outgoingBytes_(outgoingBytes) {}

 protected:
  kj::Promise<void> observe(ObserveContext context) override {
    auto out = context.getResults().initObserving();
    out.setReader(kj::heap<FarReader>(timer_, seen_));
    wire::writeModel(model(), out.initModel());
    auto access = out.initAccess();
    const auto plan = ShardPlan::make(ModelLayout(model()).totalElements(), 1);
    wire::writePlan(plan, access.initShards(static_cast<kj::uint>(plan.shards.size())));
    access.setSliceElementsMax(kSliceElements);
    access.setOutgoingBytes(outgoingBytes_);
    return kj::READY_NOW;
  }

 private:
  kj::Timer& timer_;
  ReceivedCalls& seen_;
  const uint64_t outgoingBytes_;
};

class FarLogin final : public schema::Login::Server {
 public:
  FarLogin(kj::Timer& timer, ReceivedCalls& seen, uint64_t outgoingBytes)
      : timer_(timer), seen_(seen), outgoingBytes_(outgoingBytes) {}

 protected:
  kj::Promise<void> login(LoginContext context) override {
    auto results = context.getResults();
    results.setProtocolVersion(wire::kProtocolVersion);
    results.initStatus().setOk();
    results.setReading(kj::heap<FarReading>(timer_, seen_, outgoingBytes_));
    return kj::READY_NOW;
  }

 private:
  kj::Timer& timer_;
  ReceivedCalls& seen_;
  const uint64_t outgoingBytes_;
};

/// An observer's channel to such a daemon after `pulls` pulls.
ReceivedCalls pulled(uint64_t outgoingBytes, size_t pulls) {
  kj::AsyncIoContext io = kj::setupAsyncIo();
  kj::Timer& timer = io.provider->getTimer();
  ReceivedCalls seen;
  auto pipe = io.provider->newTwoWayPipe();
  capnp::TwoPartyVatNetwork network(*pipe.ends[1], capnp::rpc::twoparty::Side::SERVER);
  auto rpc = capnp::makeRpcServer(network, kj::heap<FarLogin>(timer, seen, outgoingBytes));
  ClientOptions options;
  options.transport = Transport::rpc;
  wire::Socket socket{kj::mv(pipe.ends[0]), nullptr};
  Channel channel(io, kj::mv(socket), "tcp://far:1", options);
  const auto wait = [&](auto promise) {
    return timer.timeoutAfter(60 * kj::SECONDS, kj::mv(promise)).wait(io.waitScope);
  };
  PSD_REQUIRE_OK(wait(channel.logIn()));
  PSD_REQUIRE_OK(wait(channel.observe(model(), "")));
  channel.carry(0, 1, nullptr);
  std::vector<float> values(ModelLayout(model()).totalElements());
  for (size_t i = 0; i < pulls; i++) {
    PSD_REQUIRE_OK(wait(channel.pull(values, false, std::nullopt)));
  }
  wait(channel.fail({ErrorCode::interrupted, "the test is over"}));
  return seen;
}

TEST_CASE("A channel's window grows with the latency, also for the smallest slices that the daemon allows") {
  const ReceivedCalls seen = pulled(64 << 20, 2);
  CHECK(seen.pulls == 400);
  CHECK(seen.mostOpen > 32);  // more than slices of 1 MiB would need
  CHECK(seen.mostOpen <= 64);
}

TEST_CASE("A channel has less in flight than the daemon's budget for it, at any latency") {
  const ReceivedCalls seen = pulled(16 * kSliceBytes, 1);
  CHECK(seen.pulls == 200);
  CHECK(seen.mostOpen >= 4);
  CHECK(seen.mostOpen <= 12);
}

TEST_CASE("Calls wait for space, in their order, and one larger than the limit is sent alone") {
  kj::EventLoop loop;
  kj::WaitScope scope(loop);
  const auto settle = [&] { kj::evalLast([] {}).wait(scope); };
  AnswerBudget room;
  room.setBytes(10'000);
  std::vector<int> begun;
  std::vector<kj::Own<kj::PromiseFulfiller<Status>>> open;
  const auto call = [&](int number, uint64_t bytes) {
    return room
        .call(bytes,
              [&begun, &open, number]() -> kj::Promise<Status> {
                begun.push_back(number);
                auto answer = kj::newPromiseAndFulfiller<Status>();
                open.push_back(kj::mv(answer.fulfiller));
                return kj::mv(answer.promise);
              })
        .eagerlyEvaluate(nullptr);
  };
  auto first = call(1, 4'000), second = call(2, 4'000), third = call(3, 50'000);
  kj::Maybe<kj::Promise<Status>> givenUp = call(4, 100);
  auto last = call(5, 100);
  settle();
  CHECK(begun == std::vector<int>{1, 2});
  open[0]->fulfill(Status());
  PSD_REQUIRE_OK(first.wait(scope));
  settle();
  CHECK(begun == std::vector<int>{1, 2});  // the third would exceed the limit
  open[1]->fulfill(Status());
  PSD_REQUIRE_OK(second.wait(scope));
  settle();
  CHECK(begun == std::vector<int>{1, 2, 3});
  givenUp = nullptr;
  open[2]->fulfill(Status());
  PSD_REQUIRE_OK(third.wait(scope));
  settle();
  CHECK(begun == std::vector<int>{1, 2, 3, 5});
  open[3]->fulfill(Status());
  PSD_REQUIRE_OK(last.wait(scope));
  CHECK(room.underWay() == 0);
}

}  // namespace
}  // namespace psd::client_channel_window_test

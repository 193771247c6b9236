// A trainer's misuse of its ring, by hand: invalid places, impossible rings, writes while the daemon reads.
// Each gets a typed error or harms only that trainer.

#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

#include "common/os/shared_memory.h"
#include "test/integration/raw_trainer.h"

namespace psd::push_ring_test {
namespace {

using Json = nlohmann::ordered_json;
using namespace testing;

constexpr uint64_t kRingBytes = 16 << 10;
constexpr uint64_t kShardElements = kElements / 2;
constexpr uint64_t kRest = kShardElements - kSliceMost;

Json config(const std::string& policy = "hogwild") {
  return {{"policy", {{"type", policy}}},
          {"shards", 2},
          {"threads", 2},
          {"optimizer", {{"type", "sgd"}, {"lr", 1.0}}},
          {"limits",
           {{"slice_bytes", kSliceMost * sizeof(float)},
            {"ring_bytes", kRingBytes},
            {"all_rings_bytes", 2 * kRingBytes}}}};
}

/// A raw trainer on the Unix socket, with a ring if openRing() succeeded. Owned by one thread.
class RingTrainer : public RawTrainer {
 public:
  RingTrainer(kj::AsyncIoContext& io, const LocalServer& server, uint32_t rank = 0, uint32_t worldSize = 1)
      : RawTrainer(io, server.unixAddress(), rank, worldSize) {
    if (mustInitialize()) initializeZeros();
  }

  Status openRing(uint64_t bytes = kRingBytes) {
    auto request = session().openRingRequest();
    request.setBytes(bytes);
    auto answer = peer().wait(request.send().dropPipeline());
    if (answer.isError()) return statusFrom(answer.getError());
    auto memory = answer.getMemory();
    kj::Maybe<int> fd = peer().wait(memory.getFd());
    PSD_ASSIGN_OR_RETURN(ring_, SharedMemory::open(fd.orDefault(-1), bytes, SharedAccess::readWrite));
    return {};
  }
  /// The float at byte `at` of the ring.
  float* at(uint64_t at) { return reinterpret_cast<float*>(ring_->data() + at); }

  Status pushShared(Slice slice, uint64_t at, uint64_t count) {
    auto request = session().pushSharedRequest();
    fill(request.initHead(), slice);
    request.setAt(at);
    request.setCount(count);
    auto answer = peer().wait(request.send().dropPipeline());
    return answer.isError() ? statusFrom(answer.getError()) : Status();
  }
  /// Both slices of shard 0, from the same place.
  Status pushShard(uint64_t step, uint64_t at) {
    PSD_RETURN_IF_ERROR(pushShared({.step = step}, at, kSliceMost));
    return pushShared({.step = step, .offset = kSliceMost}, at, kRest);
  }

  /// The first slice of shard 0.
  std::vector<float> values() {
    auto answer = peer().wait(startPull(++pulls_, 0, 0, kSliceMost).dropPipeline());
    REQUIRE(answer.isSlice());
    auto values = wire::floatsIn(answer.getSlice().getValues());
    PSD_REQUIRE_OK(values);
    return {values->begin(), values->end()};
  }

 private:
  std::shared_ptr<SharedMemory> ring_;
  uint64_t pulls_ = 0;
};

void checkRefused(const Status& status, ErrorCode code, const std::string& words) {
  REQUIRE(!status.ok());
  INFO(status.message());
  CHECK(errorCodeName(status.error().code) == errorCodeName(code));
  CHECK(status.message().find(words) != std::string::npos);
}

}  // namespace

TEST_CASE("Ring: what lies in it is applied from anywhere in it, again and again, and counted") {
  for (const std::string policy : {"hogwild", "locked"}) {
    INFO(policy);
    LocalServer server(config(policy));
    auto io = kj::setupAsyncIo();
    RingTrainer trainer(io, server);
    PSD_REQUIRE_OK(trainer.openRing());
    CHECK(*trainer.at(0) == 0.0f);
    CHECK(*trainer.at(kRingBytes - sizeof(float)) == 0.0f);
    float sum = 0;
    uint64_t step = 0;
    for (uint64_t at : {uint64_t{0}, uint64_t{64}, kRingBytes - kSliceMost * sizeof(float), uint64_t{64}}) {
      const float value = 1.0f + static_cast<float>(step);
      std::fill_n(trainer.at(at), kSliceMost, value);
      PSD_REQUIRE_OK(trainer.pushShard(++step, at));
      sum += value;
      CHECK(trainer.values() == std::vector<float>(kSliceMost, -sum));
    }
    const Json status = server.status();
    CHECK(status["ring_bytes"] == kRingBytes);
    CHECK(status["counters"]["push_bytes"] == step * kShardElements * sizeof(float));
    CHECK(status["counters"]["updates"] == step);
    CHECK(status["trainers"][0]["pushed_bytes"] == step * kShardElements * sizeof(float));
    PSD_REQUIRE_OK(trainer.leave());
  }
}

TEST_CASE("Ring: places that are not in it are refused, and messages go as before") {
  LocalServer server(config());
  auto io = kj::setupAsyncIo();
  RingTrainer trainer(io, server);
  checkRefused(trainer.pushShared({}, 0, kSliceMost), ErrorCode::invalidArgument, "not opened a ring");
  PSD_REQUIRE_OK(trainer.openRing());
  struct Place {
    uint64_t at, count;
    const char* why;
  };
  constexpr uint64_t kSliceBytes = kSliceMost * sizeof(float);
  const Place places[] = {
      {kRingBytes - kSliceBytes + 64, kSliceMost, "16384 bytes"},
      {kRingBytes, 16, "16384 bytes"},
      {kRingBytes + 64, 16, "16384 bytes"},
      {UINT64_MAX - 63, kSliceMost, "16384 bytes"},
      {0, UINT64_MAX, "16384 bytes"},
      {64, uint64_t{1} << 62, "16384 bytes"},
      {4, 16, "multiples of 64"},
      {32, 16, "multiples of 64"},
      {UINT64_MAX, 16, "multiples of 64"},
      {0, 0, "2000 elements"},               // in the ring, but not a slice
      {0, 2 * kSliceMost, "2000 elements"},  // longer than the shard
  };
  for (const Place& place : places) {
    INFO(place.at << ", " << place.count);
    checkRefused(trainer.pushShared({}, place.at, place.count), ErrorCode::badSlice, place.why);
  }
  CHECK(server.status()["counters"]["refused_slices"] == std::size(places));
  *trainer.at(64 + 17 * sizeof(float)) = std::numeric_limits<float>::quiet_NaN();
  checkRefused(trainer.pushShared({}, 64, kSliceMost), ErrorCode::nonFinite, "holds nan at element 17 of");
  CHECK(trainer.values() == std::vector<float>(kSliceMost, 0.0f));
  PSD_REQUIRE_OK(trainer.push({}, std::vector<float>(kSliceMost, 1.0f)));
  PSD_REQUIRE_OK(trainer.pushShared({.offset = kSliceMost}, 0, 16));
  CHECK(trainer.values() == std::vector<float>(kSliceMost, -1.0f));
}

TEST_CASE("Ring: rings that cannot be") {
  LocalServer server(config());
  auto io = kj::setupAsyncIo();
  RingTrainer first(io, server, 0, 3), second(io, server, 1, 3);
  RawTrainer far(io, server, 2, 3);
  for (uint64_t bytes : {uint64_t{0}, kRingBytes + 1, UINT64_MAX}) {
    checkRefused(first.openRing(bytes), ErrorCode::invalidArgument, "limits.ring_bytes allows 1 to 16384");
  }
  PSD_REQUIRE_OK(first.openRing());
  checkRefused(first.openRing(), ErrorCode::invalidArgument, "already");
  auto request = far.session().openRingRequest();
  request.setBytes(64);
  checkRefused(statusFrom(far.peer().wait(request.send().dropPipeline()).getError()),
               ErrorCode::invalidArgument, "needs a Unix socket");
  PSD_REQUIRE_OK(second.openRing(kRingBytes - 64));
  CHECK(server.status()["ring_bytes"] == 2 * kRingBytes - 64);
}

TEST_CASE("Ring: all together are bounded, and what a lost trainer had is free again") {
  LocalServer server(config());
  auto io = kj::setupAsyncIo();
  auto lost = kj::heap<RingTrainer>(io, server, 0, 3);
  RingTrainer stays(io, server, 1, 3), late(io, server, 2, 3);
  PSD_REQUIRE_OK(lost->openRing());
  PSD_REQUIRE_OK(stays.openRing());
  checkRefused(late.openRing(64), ErrorCode::overloaded, "limits.all_rings_bytes allows 32768");
  lost = nullptr;
  auto& timer = io.provider->getTimer();
  const auto deadline = timer.now() + 60 * kj::SECONDS;
  while (server.status()["ring_bytes"] != kRingBytes) {
    REQUIRE(timer.now() < deadline);
    timer.afterDelay(5 * kj::MILLISECONDS).wait(io.waitScope);
  }
  PSD_REQUIRE_OK(late.openRing());
  std::fill_n(late.at(0), kSliceMost, 2.0f);
  PSD_REQUIRE_OK(late.pushShard(1, 0));
  CHECK(stays.values() == std::vector<float>(kSliceMost, -2.0f));
}

TEST_CASE("Ring: a trainer that writes while the daemon reads gets an answer, and the daemon stays") {
  for (const std::string policy : {"hogwild", "locked"}) {
    INFO(policy);
    LocalServer server(config(policy));
    auto io = kj::setupAsyncIo();
    RingTrainer trainer(io, server);
    PSD_REQUIRE_OK(trainer.openRing());
    std::atomic<bool> done{false};
    std::thread scribbler([&, place = trainer.at(0)] {
      // An element with all bits set is a NaN; it is rare enough for slices to pass the check.
      for (uint64_t i = 0; !done; i++) std::memset(place + i % kSliceMost, i % 100'000 == 0 ? 0xff : 0, 4);
    });
    uint64_t answered = 0;
    for (uint64_t step = 1; step <= 300; step++) {
      Status status = trainer.pushShard(step, 0);
      if (!status.ok()) CHECK(errorCodeName(status.error().code) == errorCodeName(ErrorCode::nonFinite));
      answered++;
    }
    done = true;
    scribbler.join();
    CHECK(answered == 300);
    PSD_REQUIRE_OK(trainer.leave());
    CHECK(server.status()["state"] == "serving");
  }
}

}  // namespace psd::push_ring_test

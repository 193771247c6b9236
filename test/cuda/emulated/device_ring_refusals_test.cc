// A trainer's misuse of its ring on a device, by hand: invalid places and impossible rings. Each is answered
// with a typed error.

#include "server/push/device_ring.h"
#include "test/integration/protocol_server.h"
#include "test/integration/raw_trainer.h"

namespace psd::device_ring_refusals_test {
namespace {

using namespace testing;

constexpr uint64_t kRingBytes = 16 << 10;

Json onDevices() {
  Json config = testing::config("hogwild");
  config["limits"]["ring_bytes"] = kRingBytes;
  config["limits"]["all_rings_bytes"] = 2 * kSharedUnitBytes;
  return config;
}

std::shared_ptr<Backend> device() {
  auto backend = makeCudaBackend(0);
  PSD_REQUIRE_OK(backend);
  return *backend;
}

/// A raw trainer. Owned by one thread.
class RingTrainer : public RawTrainer {
 public:
  RingTrainer(kj::AsyncIoContext& io, const std::string& address, uint32_t rank = 0, uint32_t worldSize = 1)
      : RawTrainer(io, address, rank, worldSize) {
    if (mustInitialize()) initializeZeros();
  }

  Status openRing(uint64_t bytes = kRingBytes, uint32_t device = 0) {
    auto request = session().openDeviceRingRequest();
    request.setDevice(device);
    request.setBytes(bytes);
    auto answer = peer().wait(request.send().dropPipeline());
    if (answer.isError()) return statusFrom(answer.getError());
    CHECK(answer.getHandle().size() == 64);
    return {};
  }
  Status push(uint64_t at, uint64_t count, uint32_t shard = 0) {
    auto request = session().pushFromDeviceRequest();
    fill(request.initHead(), {.shard = shard});
    request.setAt(at);
    request.setCount(count);
    auto answer = peer().wait(request.send().dropPipeline());
    return answer.isError() ? statusFrom(answer.getError()) : Status();
  }
  Status pull(uint64_t at, uint64_t count, uint32_t shard = 0) {
    auto request = session().pullToDeviceRequest();
    request.setPull(1);
    request.setShard(shard);
    request.setAt(at);
    request.setCount(count);
    auto answer = peer().wait(request.send().dropPipeline());
    return answer.isError() ? statusFrom(answer.getError()) : Status();
  }
};

void checkRefused(const Status& status, ErrorCode code, const std::string& words) {
  REQUIRE(!status.ok());
  INFO(status.message());
  CHECK(errorCodeName(status.error().code) == errorCodeName(code));
  CHECK(status.message().find(words) != std::string::npos);
}

TEST_CASE("Device ring: places that are not in it are refused") {
  LocalServer server(onDevices(), device());
  auto io = kj::setupAsyncIo();
  RingTrainer trainer(io, server.unixAddress());
  checkRefused(trainer.push(0, kSliceMost), ErrorCode::invalidArgument, "not opened a ring on device 0");
  checkRefused(trainer.pull(0, kSliceMost), ErrorCode::invalidArgument, "not opened a ring on device 0");
  PSD_REQUIRE_OK(trainer.openRing());
  struct Place {
    uint64_t at, count;
    uint32_t shard;
    const char* why;
  };
  constexpr uint64_t kSliceBytes = kSliceMost * sizeof(float);
  const Place places[] = {
      {kRingBytes - kSliceBytes + 64, kSliceMost, 0, "16384 bytes"},
      {kRingBytes, 16, 0, "16384 bytes"},
      {UINT64_MAX - 63, kSliceMost, 0, "16384 bytes"},
      {4, 16, 0, "multiples of 64"},
      {0, 0, 0, "2000 elements"},  // in the ring, but not a slice
      {0, 2 * kSliceMost, 0, "2000 elements"},
      {0, 16, 2, "2 shards"},
      {0, 16, UINT32_MAX, "2 shards"},
  };
  for (const Place& place : places) {
    INFO(place.at << ", " << place.count << ", " << place.shard);
    checkRefused(trainer.push(place.at, place.count, place.shard), ErrorCode::badSlice, place.why);
    checkRefused(trainer.pull(place.at, place.count, place.shard), ErrorCode::badSlice, place.why);
  }
  CHECK(counter(server, "refused_slices") == 2 * std::size(places));
  PSD_REQUIRE_OK(trainer.push(0, 1008));
  PSD_REQUIRE_OK(trainer.pull(kRingBytes - 64, 16));
}

TEST_CASE("Device ring: rings that cannot be, and those of others when they are lost") {
  LocalServer server(onDevices(), device());
  auto io = kj::setupAsyncIo();
  auto first = kj::heap<RingTrainer>(io, server.unixAddress(), 0, 4);
  RingTrainer second(io, server.unixAddress(), 1, 4), third(io, server.unixAddress(), 2, 4);
  RingTrainer far(io, server.address(), 3, 4);
  for (uint64_t bytes : {uint64_t{0}, kRingBytes + 1, UINT64_MAX}) {
    checkRefused(first->openRing(bytes), ErrorCode::invalidArgument, "limits.ring_bytes allows 1 to 16384");
  }
  checkRefused(first->openRing(64, 1), ErrorCode::invalidArgument, "device 1: there are 1, numbered from 0");
  PSD_REQUIRE_OK(first->openRing());
  checkRefused(first->openRing(), ErrorCode::invalidArgument, "already");
  checkRefused(far.openRing(), ErrorCode::invalidArgument, "needs a Unix socket");
  PSD_REQUIRE_OK(second.openRing());
  checkRefused(third.openRing(64), ErrorCode::overloaded, "limits.all_rings_bytes allows 4194304");
  first = nullptr;
  turnUntil(io, [&] { return server.status()["ring_bytes"] == kSharedUnitBytes; });
  PSD_REQUIRE_OK(third.openRing());
}

TEST_CASE("Device ring: all copies of what lies in it are no larger than it is") {
  const auto store = ParameterStore::create(model(), 2, {device()}, Optimizer{});
  PSD_REQUIRE_OK(store);
  const auto all = ByteBudget::make(kSharedUnitBytes);
  const auto ring = DeviceRing::make(**store, 0, kRingBytes, Limits{}, *all);
  PSD_REQUIRE_OK(ring);
  CHECK(all->used() == kSharedUnitBytes);
  {
    const auto most = (*ring)->leaseCopy(kRingBytes - 64);
    PSD_REQUIRE_OK(most);
    checkRefused((*ring)->leaseCopy(128).status(), ErrorCode::overloaded, "more gradients are announced");
    PSD_REQUIRE_OK((*ring)->leaseCopy(64));
  }
  PSD_REQUIRE_OK((*ring)->leaseCopy(kRingBytes));
}

TEST_CASE("Device ring: the CPU has none") {
  LocalServer server(onDevices(), makeCpuBackend());
  auto io = kj::setupAsyncIo();
  RingTrainer trainer(io, server.unixAddress());
  checkRefused(trainer.openRing(), ErrorCode::invalidArgument, "cpu does not support shared device memory");
}

}  // namespace
}  // namespace psd::device_ring_refusals_test

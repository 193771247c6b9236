#include "server/publish/publisher.h"

#include <future>
#include <mutex>
#include <optional>
#include <vector>

#include "test/support/event_loop.h"
#include "test/support/memory_env.h"
#include "test/unit/server/checkpoint/checkpoint_store.h"

namespace psd::publisher_test {
namespace {

using namespace testing;

CheckpointSource sourceOf(const std::shared_ptr<ParameterStore>& store) {
  CheckpointSource source;
  source.store = store;
  source.groups = [] { return std::vector<CheckpointSource::Group>{{.policy = "sync", .rounds = true}}; };
  return source;
}

/// A disk on which the first version takes as long as the test wants.
class SlowDisk {
 public:
  VersionStore::Place place() {
    return {.env = {std::shared_ptr<void>(), &env_}, .folder = "/versions", .holds = [this] {
              std::call_once(first_, [this] {
                isWriting_.set_value();
                mayWrite_.get_future().wait_for(std::chrono::minutes(1));
              });
              return Status();
            }};
  }
  bool awaitWrite() {
    return isWriting_.get_future().wait_for(std::chrono::minutes(1)) == std::future_status::ready;
  }
  void write() { mayWrite_.set_value(); }

 private:
  MemoryEnv env_;
  std::once_flag first_;
  std::promise<void> isWriting_, mayWrite_;
};

/// A publisher of every round, which writes the version of round 1 while round 2 waits.
struct TwoRounds {
  TwoRounds() {
    auto opened = VersionStore::open(disk.place(), {.keep = 4, .bytes = 1 << 20, .leases = 16});
    PSD_REQUIRE_OK(opened);
    versions = *std::move(opened);
    PublishConfig config;
    config.everyUpdates = 1;
    publisher.emplace(versions, config, "/versions", Partition{0, 2}, rounds);
    publisher->begin(sourceOf(store));
    apply(1);
    REQUIRE(disk.awaitWrite());
    apply(2);
  }
  void apply(uint64_t round) { rounds->applied(0, {round, 10 + round}, loop.wait(lock.acquire())); }

  TestLoop loop;
  ShardLock lock;
  SlowDisk disk;
  const std::shared_ptr<RoundQueue> rounds = std::make_shared<RoundQueue>();
  const std::shared_ptr<ParameterStore> store = makeStore(2, R"({"type": "sgd", "lr": 1})");
  std::shared_ptr<VersionStore> versions;
  std::optional<Publisher> publisher;
};

TEST_CASE("Publisher: a round that is held while the version before is written is published at the end") {
  for (const bool finishes : {true, false}) {
    TwoRounds world;
    auto ended = std::async(std::launch::async, [&] {
      if (finishes) return world.publisher->finish();
      world.publisher->stop();
      return Status();
    });
    CHECK(world.loop.until([&] {  // it has begun to end
      return world.loop.wait(world.publisher->publish()).error().code == ErrorCode::shuttingDown;
    }));
    world.disk.write();
    PSD_REQUIRE_OK(ended.get());
    std::vector<uint64_t> numbers;
    for (const VersionInfo& info : world.versions->versions()) numbers.push_back(info.number);
    CHECK(numbers == (finishes ? std::vector<uint64_t>{1, 2} : std::vector<uint64_t>{1}));
    world.loop.wait(world.lock.acquire());
    CHECK(world.rounds->empty());
  }
}

TEST_CASE("Publisher: rounds that wait are published before it is held, and none after") {
  TwoRounds world;
  auto held = world.publisher->hold();
  CHECK_FALSE(world.loop.resolved(held));
  world.disk.write();
  world.loop.wait(kj::mv(held));
  CHECK(world.versions->find(0)->number == 2);
  world.apply(3);
  const uint64_t passes = world.publisher->passes();
  REQUIRE(world.loop.until([&] { return world.publisher->passes() >= passes + 2; }));
  CHECK(world.versions->find(0)->number == 2);
  world.publisher->release();
  REQUIRE(world.loop.until([&] { return world.versions->find(0)->number == 3; }));
}

}  // namespace
}  // namespace psd::publisher_test

// Versions that a pull reports for its values when updates occur during the pull.

#include <atomic>
#include <functional>
#include <vector>

#include "test/support/arena_values.h"
#include "test/support/catch.h"
#include "test/support/forwarding_backend.h"
#include "test/support/local_server.h"
#include "trainer/client/api/client.h"

namespace psd::pulled_versions_test {
namespace {

using testing::LocalServer;

const ModelSpec kModel{"net", {{"w", DType::f32, {3000}}}};

/// Calls `onRead` once, before the next read. Set by the test while no read is in progress.
class WatchedStorage final : public testing::ForwardingStorage {
 public:
  WatchedStorage(std::unique_ptr<ShardStorage> inner, std::function<void()>& onRead)
      : ForwardingStorage(std::move(inner)), onRead_(onRead) {}

  void read(Lane& lane, uint64_t offset, uint64_t count, ReadDone done) override {
    if (const auto watch = std::exchange(onRead_, nullptr)) watch();
    ForwardingStorage::read(lane, offset, count, std::move(done));
  }

 private:
  std::function<void()>& onRead_;
};

class WatchedBackend final : public testing::WrappingBackend {
 public:
  std::function<void()> onRead;

 protected:
  std::unique_ptr<ShardStorage> wrap(std::unique_ptr<ShardStorage> storage) override {
    return std::make_unique<WatchedStorage>(std::move(storage), onRead);
  }
};

std::unique_ptr<Client> joined(const LocalServer& server, uint32_t rank, const std::vector<float>& initial) {
  ClientOptions options;
  options.servers = {server.address()};
  options.chunkBytes = 4096;  // three slices of the one shard
  options.window = 1;
  auto client = Client::connect(options);
  PSD_REQUIRE_OK(client);
  PSD_REQUIRE_OK((*client)->join({Rank{rank}, 2}, kModel, [&] { return std::span<const float>(initial); }));
  return std::move(*client);
}

TEST_CASE(
    "under hogwild a pull's version is the oldest of its slices', so that no staleness is understated") {
  const auto device = std::make_shared<WatchedBackend>();
  LocalServer server({{"policy", {{"type", "hogwild"}}}, {"shards", 1}, {"threads", 2}}, device);
  std::vector<float> values = testing::everyParameter(kModel, 1);
  const std::vector<float> gradient = values;
  const auto reader = joined(server, 0, values), other = joined(server, 1, values);
  PSD_REQUIRE_OK(other->push(Step{1}, gradient, 1, {}).wait());
  Status pushed{ErrorCode::internal, "nothing was read"};
  // The other trainer's connection has an event loop of its own.
  device->onRead = [&] { pushed = other->push(Step{2}, gradient, 1, {}).wait().status(); };
  const auto pulled = reader->pull(values).wait();
  PSD_REQUIRE_OK(pulled);
  PSD_REQUIRE_OK(pushed);
  CHECK(pulled->versions == std::vector<Version>{Version{1}});
  const auto stale = reader->push(Step{1}, gradient, 1, pulled->versions).wait();
  PSD_REQUIRE_OK(stale);
  CHECK(stale->staleness == 1);
  const auto next = reader->pull(values).wait();
  PSD_REQUIRE_OK(next);
  CHECK(next->versions == std::vector<Version>{Version{3}});
}

}  // namespace
}  // namespace psd::pulled_versions_test

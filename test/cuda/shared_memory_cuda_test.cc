// The CUDA store's memory for other processes, from the side of the store. Without a device every case is
// skipped.

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "test/cuda/device_or_skip.h"
#include "test/support/any_optimizer.h"
#include "test/support/catch.h"
#include "test/support/random.h"
#include "test/support/storage_calls.h"

namespace psd::shared_memory_cuda_test {
namespace {

using testing::copyOf;
using testing::deviceOrSkip;
using testing::normalValues;
using testing::StorageCalls;

constexpr uint64_t kElements = 300007;

/// A shard, and memory that another process could map. Owned by one thread.
struct Sharing {
  explicit Sharing(const Optimizer& optimizer = {}) : backend(deviceOrSkip()) {
    auto allocated = backend->allocate(std::vector<uint64_t>{kElements}, optimizer);
    PSD_REQUIRE_OK(allocated);
    shards = std::move(*allocated);
    storage.emplace(*backend, *shards[0]);
    auto shared = backend->shareMemory(kElements * sizeof(float));
    PSD_REQUIRE_OK(shared);
    memory = std::move(*shared);
  }
  std::vector<float> fetch(std::span<const float> onDevice) {
    const auto values = storage->fetch(onDevice);
    PSD_REQUIRE_OK(values);
    return copyOf(*values);
  }

  std::shared_ptr<Backend> backend;
  std::vector<std::unique_ptr<ShardStorage>> shards;
  std::optional<StorageCalls> storage;
  std::shared_ptr<SharedDeviceMemory> memory;
};

TEST_CASE("shared device memory is as large as asked for, zero, and has a handle") {
  Sharing sharing;
  CHECK(sharing.backend->sharesMemory());
  CHECK(sharing.memory->floats().size() == kElements);
  CHECK(sharing.memory->handle().size() == 64);
  CHECK(sharing.fetch(sharing.memory->floats()) == std::vector<float>(kElements, 0.f));
}

TEST_CASE("weights go to shared device memory as they are read, values of the host as they were") {
  Sharing sharing;
  const auto weights = normalValues(kElements, 1);
  PSD_REQUIRE_OK(sharing.storage->write(0, weights));
  const auto floats = sharing.memory->floats();
  PSD_REQUIRE_OK(sharing.storage->readTo(1600, floats.subspan(64, 1000)));
  const std::vector<float> read = sharing.fetch(floats.subspan(64, 1000));
  CHECK(std::equal(read.begin(), read.end(), weights.begin() + 1600));
  CHECK(sharing.fetch(floats.first(64)) == std::vector<float>(64, 0.f));
  CHECK(sharing.fetch(floats.subspan(1064, 64)) == std::vector<float>(64, 0.f));
  PSD_REQUIRE_OK(sharing.storage->put(weights, floats));
  CHECK(sharing.fetch(floats) == weights);
}

TEST_CASE("a gradient taken from shared device memory makes the step that it makes from the host's") {
  for (const Optimizer& optimizer : testing::everyOptimizer(0)) {
    Sharing sharing(optimizer), plain(optimizer);
    for (uint64_t number = 1; number <= 3; number++) {
      const auto gradient = normalValues(kElements, number);
      const UpdateScalars update{number, optimizer.learningRate(number)};
      constexpr uint64_t kCut = 100000;
      for (const auto& [begin, count] : {std::pair{uint64_t{0}, kCut}, std::pair{kCut, kElements - kCut}}) {
        const auto part = std::span<const float>(gradient).subspan(begin, count);
        const auto place = sharing.memory->floats().subspan(begin, count);
        PSD_REQUIRE_OK(sharing.storage->put(part, place));
        const auto taken = sharing.storage->take(place);
        PSD_REQUIRE_OK(taken);
        // The peer that shares the memory may continue to write.
        PSD_REQUIRE_OK(sharing.storage->put(std::vector<float>(count, 7.f), place));
        PSD_REQUIRE_OK(sharing.storage->apply(begin, Gradient::onDevice(taken->values), update));
        PSD_REQUIRE_OK(plain.storage->apply(begin, part, update));
      }
    }
    const auto result = sharing.storage->read(0, kElements), expected = plain.storage->read(0, kElements);
    PSD_REQUIRE_OK(result);
    PSD_REQUIRE_OK(expected);
    CHECK(copyOf(*result) == copyOf(*expected));
  }
}

TEST_CASE("a gradient that is not finite is not taken from shared device memory") {
  Sharing sharing;
  const auto floats = sharing.memory->floats();
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    for (const uint64_t at : {uint64_t{0}, kElements / 2, kElements - 1}) {
      auto gradient = normalValues(kElements, at);
      gradient[at] = bad;
      PSD_REQUIRE_OK(sharing.storage->put(gradient, floats));
      const auto refused = sharing.storage->take(floats);
      REQUIRE_FALSE(refused.ok());
      CHECK(refused.error().code == ErrorCode::nonFinite);
    }
  }
  PSD_REQUIRE_OK(
      sharing.storage->put(std::vector<float>(kElements, std::numeric_limits<float>::max()), floats));
  PSD_REQUIRE_OK(sharing.storage->take(floats));
}

TEST_CASE("a device that has no room for shared memory says so") {
  Sharing sharing;
  const auto refused = sharing.backend->shareMemory(uint64_t{1} << 42);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::overloaded);
}

}  // namespace
}  // namespace psd::shared_memory_cuda_test

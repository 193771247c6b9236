#include <algorithm>
#include <cstdint>
#include <limits>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "common/types/finite.h"
#include "server/store/staging_pool.h"
#include "test/support/catch.h"
#include "test/support/storage_calls.h"

namespace psd::storage_test {
namespace {

using testing::copyOf;
using testing::StorageCalls;

/// w ← w − g.
Optimizer subtracting() {
  Optimizer optimizer;
  optimizer.fullLearningRate = 1;
  return optimizer;
}

const UpdateScalars kPlainUpdate{1, 1.0};

struct Allocation {
  std::shared_ptr<Backend> backend = makeCpuBackend();
  std::vector<std::unique_ptr<ShardStorage>> shards;
};

Allocation allocate(const std::vector<uint64_t>& counts, const Optimizer& optimizer = subtracting()) {
  Allocation allocation;
  auto shards = allocation.backend->allocate(counts, optimizer);
  PSD_REQUIRE_OK(shards);
  allocation.shards = std::move(*shards);
  return allocation;
}

std::vector<float> ramp(size_t count, float first = 1) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

TEST_CASE("a new storage is zero, and its slots have their initial values") {
  Optimizer optimizer;
  optimizer.algorithm = Adagrad{.initialAccumulatorValue = 0.5};
  const Allocation allocation = allocate({48, 5}, optimizer);
  for (const auto& shard : allocation.shards) {
    StorageCalls storage(*allocation.backend, *shard);
    const uint64_t count = shard->elementCount();
    const auto weights = storage.read(0, count);
    PSD_REQUIRE_OK(weights);
    CHECK(copyOf(*weights) == std::vector<float>(count, 0.f));
    const auto sum = storage.readSlot(0, 0, count);
    PSD_REQUIRE_OK(sum);
    CHECK(copyOf(*sum) == std::vector<float>(count, 0.5f));
  }
}

TEST_CASE("writes and updates change exactly the range at their offset") {
  const Allocation allocation = allocate({32, 50, 16});
  std::vector<StorageCalls> shards;
  for (const auto& shard : allocation.shards) shards.emplace_back(*allocation.backend, *shard);
  PSD_REQUIRE_OK(shards[0].write(0, ramp(32, 100)));
  PSD_REQUIRE_OK(shards[1].write(0, ramp(50, 200)));
  PSD_REQUIRE_OK(shards[2].write(0, ramp(16, 300)));
  PSD_REQUIRE_OK(shards[1].write(16, std::vector<float>(20, -1.f)));
  PSD_REQUIRE_OK(shards[1].apply(32, ramp(18), kPlainUpdate));

  std::vector<float> expected = ramp(50, 200);
  for (size_t i = 16; i < 36; ++i) expected[i] = -1;
  for (size_t i = 32; i < 50; ++i) expected[i] -= static_cast<float>(i - 31);
  const auto middle = shards[1].read(0, 50);
  PSD_REQUIRE_OK(middle);
  CHECK(copyOf(*middle) == expected);
  CHECK(copyOf(*shards[1].read(32, 7)) == std::vector<float>(expected.begin() + 32, expected.begin() + 39));
  CHECK(copyOf(*shards[0].read(0, 32)) == ramp(32, 100));
  CHECK(copyOf(*shards[2].read(0, 16)) == ramp(16, 300));
}

TEST_CASE("slots follow the slice of their weights") {
  Optimizer optimizer;
  optimizer.algorithm = Sgd{.momentum = 0.5};
  const Allocation allocation = allocate({16, 40}, optimizer);
  StorageCalls storage(*allocation.backend, *allocation.shards[1]);
  PSD_REQUIRE_OK(storage.apply(16, ramp(20), kPlainUpdate));
  std::vector<float> expected(40, 0.f);
  for (size_t i = 0; i < 20; ++i) expected[16 + i] = static_cast<float>(i + 1);
  const auto momentum = storage.readSlot(0, 0, 40);
  PSD_REQUIRE_OK(momentum);
  CHECK(copyOf(*momentum) == expected);
  StorageCalls other(*allocation.backend, *allocation.shards[0]);
  CHECK(copyOf(*other.readSlot(0, 0, 16)) == std::vector<float>(16, 0.f));
}

TEST_CASE("a slot takes exactly the values at their offset") {
  const Optimizer optimizer{.algorithm = Adam{}};
  const Allocation allocation = allocate({16, 40}, optimizer);
  StorageCalls storage(*allocation.backend, *allocation.shards[1]);
  PSD_REQUIRE_OK(storage.writeSlot(1, 16, ramp(8, 5)));
  std::vector<float> expected(40, 0.f);
  std::ranges::copy(ramp(8, 5), expected.begin() + 16);
  CHECK(copyOf(*storage.readSlot(1, 0, 40)) == expected);
  CHECK(copyOf(*storage.readSlot(0, 0, 40)) == std::vector<float>(40, 0.f));
  CHECK(copyOf(*storage.read(0, 40)) == std::vector<float>(40, 0.f));
}

TEST_CASE("a read is a live view, a snapshot is not") {
  const Allocation allocation = allocate({64});
  StorageCalls storage(*allocation.backend, *allocation.shards[0]);
  PSD_REQUIRE_OK(storage.write(0, ramp(64)));
  const auto live = storage.read(16, 32);
  const auto copy = storage.snapshot(16, 32);
  PSD_REQUIRE_OK(live);
  PSD_REQUIRE_OK(copy);
  CHECK(live->owner == nullptr);
  CHECK(copy->owner != nullptr);
  PSD_REQUIRE_OK(storage.apply(0, std::vector<float>(64, 1000.f), kPlainUpdate));
  CHECK(copyOf(*copy) == ramp(32, 17));
  CHECK(copyOf(*live) == ramp(32, 17 - 1000));
}

TEST_CASE("a snapshot outlives its lane and its storage") {
  Result<ReadView> copy = ReadView{};
  {
    const Allocation allocation = allocate({64});
    StorageCalls storage(*allocation.backend, *allocation.shards[0]);
    PSD_REQUIRE_OK(storage.write(0, ramp(64)));
    copy = storage.snapshot(0, 64);
  }
  PSD_REQUIRE_OK(copy);
  CHECK(copyOf(*copy) == ramp(64));
}

TEST_CASE("shards are aligned, and readable past their end") {
  // 2 MiB of floats, so that the last shard ends exactly at the end of a huge page.
  const Allocation allocation = allocate({17, 1, (uint64_t{2} << 20) / sizeof(float) - 48});
  volatile const char* last = nullptr;
  for (const auto& shard : allocation.shards) {
    StorageCalls storage(*allocation.backend, *shard);
    const auto view = storage.read(0, shard->elementCount());
    PSD_REQUIRE_OK(view);
    CHECK(reinterpret_cast<uintptr_t>(view->values.data()) % 64 == 0);
    last = reinterpret_cast<const char*>(view->values.data() + view->values.size());
    for (int i = 0; i < 7; ++i) CHECK((last[i] == 0));
  }
}

TEST_CASE("an allocation beyond any machine is rejected with its bytes") {
  const auto backend = makeCpuBackend();
  const uint64_t huge[] = {uint64_t{1} << 50, 16};
  auto refused = backend->allocate(huge, subtracting());
  REQUIRE(!refused.ok());
  CHECK(refused.error().code == ErrorCode::overloaded);
  CHECK_THAT(refused.message(), Catch::Matchers::Contains("4503599627370560 bytes"));
  const uint64_t beyond64Bits[] = {std::numeric_limits<uint64_t>::max(), 16};
  refused = backend->allocate(beyond64Bits, subtracting());
  REQUIRE(!refused.ok());
  CHECK(refused.error().code == ErrorCode::overloaded);
}

TEST_CASE("a missing CUDA device is rejected by name, in every build and on every machine") {
  const auto count = cudaDeviceCount();
  REQUIRE((!count.ok() || *count < 1000));
  const auto backend = makeCudaBackend(1000);
  REQUIRE(!backend.ok());
  CHECK(backend.error().code == ErrorCode::invalidArgument);
  CHECK_THAT(backend.message(), Catch::Matchers::Contains("cuda:1000"));
}

constexpr int kThreads = 4;
constexpr int kUpdatesPerThread = 200;
constexpr uint64_t kSharedElements = 4096;

/// kThreads threads subtract 1 from every element kUpdatesPerThread times, each under `lock` if given.
std::vector<float> subtractFromManyThreads(std::mutex* lock) {
  const Allocation allocation = allocate({kSharedElements});
  const std::vector<float> ones(kSharedElements, 1.f);
  std::vector<std::thread> threads;
  std::vector<Status> outcomes(kThreads);
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      StorageCalls storage(*allocation.backend, *allocation.shards[0]);
      for (int update = 0; update < kUpdatesPerThread; ++update) {
        std::unique_lock<std::mutex> guard;
        if (lock != nullptr) guard = std::unique_lock(*lock);
        const Status status = storage.apply(0, ones, kPlainUpdate);
        if (!status.ok()) outcomes[thread] = status;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Status& outcome : outcomes) PSD_REQUIRE_OK(outcome);
  StorageCalls storage(*allocation.backend, *allocation.shards[0]);
  const auto found = storage.snapshot(0, kSharedElements);
  PSD_REQUIRE_OK(found);
  return copyOf(*found);
}

TEST_CASE("under a lock no update is lost") {
  std::mutex lock;
  const std::vector<float> expected(kSharedElements, -1.f * kThreads * kUpdatesPerThread);
  CHECK(subtractFromManyThreads(&lock) == expected);
}

TEST_CASE("without a lock every element ends between the provable bounds") {
  // Each write stores a value that was read, less 1, so an element only ever holds integers from −(all
  // updates) to 0. It cannot end above −2: the last write of all is some thread's last; that thread's read of
  // it follows its own kUpdatesPerThread − 1 earlier writes, and the smallest value that others can have
  // written back in between stems from a read of 0 made before everything, so −1; hence −2. (With one update
  // per thread, −1.)
  const std::vector<float> found = subtractFromManyThreads(nullptr);
  for (size_t i = 0; i < found.size(); ++i) {
    INFO("element " << i);
    REQUIRE(found[i] <= -2.f);
    REQUIRE(found[i] >= -1.f * kThreads * kUpdatesPerThread);
    REQUIRE(found[i] == static_cast<float>(static_cast<int>(found[i])));
  }
}

TEST_CASE("threads that update disjoint slices lose nothing without a lock") {
  constexpr uint64_t kSlice = 16;
  const Allocation allocation = allocate({kSlice * kThreads});
  const std::vector<float> ones(kSlice, 1.f);
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      StorageCalls storage(*allocation.backend, *allocation.shards[0]);
      for (int update = 0; update < kUpdatesPerThread; ++update) {
        (void)storage.apply(thread * kSlice, ones, kPlainUpdate);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  StorageCalls storage(*allocation.backend, *allocation.shards[0]);
  CHECK(copyOf(*storage.read(0, kSlice * kThreads)) ==
        std::vector<float>(kSlice * kThreads, -1.f * kUpdatesPerThread));
}

TEST_CASE("a value that is not finite is found at any position") {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::signaling_NaN()}) {
    std::vector<float> values(10001, std::numeric_limits<float>::max());
    values[5] = std::numeric_limits<float>::denorm_min();
    values[6] = -0.f;
    CHECK(allFinite(values));
    for (const size_t place : {0u, 7u, 4095u, 4096u, 9999u, 10000u}) {
      const float before = std::exchange(values[place], bad);
      CHECK(!allFinite(values));
      values[place] = before;
    }
  }
  CHECK(allFinite({}));
}

int liveBuffers = 0;

std::shared_ptr<StagingPool> countedPool(StagingPool::Limits limits) {
  return StagingPool::make({.allocate =
                                [](size_t bytes) {
                                  ++liveBuffers;
                                  return std::aligned_alloc(64, bytes);
                                },
                            .release =
                                [](void* memory) {
                                  --liveBuffers;
                                  std::free(memory);
                                }},
                           limits);
}

TEST_CASE("a staging pool reuses its buffers and keeps within its limits") {
  constexpr uint64_t kCount = 65536;  // 256 KiB
  auto pool = countedPool({.lentBytesMax = 1 << 20, .idleBytesMax = 256 << 10});
  const float* first = nullptr;
  {
    const auto buffer = pool->acquire(kCount);
    PSD_REQUIRE_OK(buffer);
    first = buffer->get();
  }
  CHECK(pool->acquire(kCount - 1000)->get() == first);  // one that is a little larger is reused
  CHECK(pool->acquire(kCount / 8)->get() != first);     // one that is much larger is not
  CHECK(liveBuffers == 2);

  std::vector<std::shared_ptr<float>> lent;
  for (int i = 0; i < 4; ++i) lent.push_back(*pool->acquire(kCount));
  const auto refused = pool->acquire(kCount);
  REQUIRE(!refused.ok());
  CHECK(refused.error().code == ErrorCode::overloaded);
  CHECK_THAT(refused.message(), Catch::Matchers::Contains("262144 bytes"));
  for (int i = 0; i < 2; i++) CHECK(StagingPool::transfer(lent.back()));  // its holder accounts for it, once
  CHECK(pool->lentBytes() == 768 << 10);
  CHECK(pool->acquire(kCount).ok());
  CHECK_FALSE(StagingPool::transfer(std::make_shared<float>()));
  CHECK_FALSE(StagingPool::transfer(nullptr));
  lent.clear();
  CHECK(pool->acquire(100 * kCount).ok());  // alone it may be larger than the limit
  CHECK(liveBuffers <= 2);                  // the idle ones were freed down to the limit first
  pool.reset();
  CHECK(liveBuffers == 0);
}

}  // namespace
}  // namespace psd::storage_test

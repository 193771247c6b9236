#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "server/store/cpu/racy_loops.h"
#include "server/store/staging_pool.h"
#include "test/support/catch.h"
#include "test/support/forwarding_backend.h"
#include "test/support/test_device.h"

namespace psd::testing {

/// Every operation passes through this gate before it runs, so that a test can hold some while others
/// proceed. Open at first. Thread-safe.
class OperationGate {
 public:
  void pass() {
    std::unique_lock lock(mutex_);
    held_++;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
    held_--;
  }
  void close() { set(false); }
  void open() { set(true); }
  /// The number of operations that are held.
  size_t held() {
    const std::lock_guard lock(mutex_);
    return open_ ? 0 : held_;
  }
  /// Waits up to a minute until `count` lanes have an operation that is held; whether that happened.
  bool waitForHeld(size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::minutes(1), [&] { return !open_ && held_ >= count; });
  }

 private:
  void set(bool open) {
    const std::lock_guard lock(mutex_);
    open_ = open;
    changed_.notify_all();
  }

  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  bool open_ = true;
  size_t held_ = 0;
};

/// A thread that runs a lane's operations in the order of the calls. It owns a host lane for the storage
/// behind them. The destructor waits for everything queued, like a device's.
class AsyncLane final : public Lane {
 public:
  AsyncLane(std::unique_ptr<Lane> host, std::shared_ptr<OperationGate> gate)
      : host_(std::move(host)), gate_(std::move(gate)), thread_([this] { run(); }) {}
  ~AsyncLane() override {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }
  AsyncLane(const AsyncLane&) = delete;
  AsyncLane& operator=(const AsyncLane&) = delete;

  /// For use within operations only.
  Lane& host() { return *host_; }
  Result<std::shared_ptr<float>> buffer(uint64_t count) { return pool_->acquire(count); }
  void queue(std::function<void()> operation) {
    const std::lock_guard lock(mutex_);
    operations_.push_back(std::move(operation));
    wake_.notify_one();
  }

 private:
  void run() {
    for (;;) {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return ending_ || !operations_.empty(); });
      if (operations_.empty()) return;
      const std::function<void()> operation = std::move(operations_.front());
      operations_.pop_front();
      lock.unlock();
      gate_->pass();
      operation();
    }
  }

  const std::unique_ptr<Lane> host_;
  const std::shared_ptr<OperationGate> gate_;
  const std::shared_ptr<StagingPool> pool_ =
      StagingPool::make(StagingPool::hostMemory(), {.lentBytesMax = UINT64_MAX, .idleBytesMax = 0});
  std::mutex mutex_;  // guards the members below
  std::condition_variable wake_;
  std::deque<std::function<void()>> operations_;
  bool ending_ = false;
  std::thread thread_;  // last member: it uses all of the above
};

/// A shard on the CPU whose operations run later on another thread, as on a device: reads return copies, and
/// staged gradients have memory of their own. It holds callers to the contract of ShardStorage: spans are
/// read only when the operation runs, objects are read immediately, and the program aborts if the storage is
/// destroyed while an operation is in flight. Thread-safe.
class AsyncStorage final : public ForwardingStorage {
 public:
  AsyncStorage(std::unique_ptr<ShardStorage> inner, std::shared_ptr<StagingPool> gradients)
      : ForwardingStorage(std::move(inner)), gradients_(std::move(gradients)) {}
  ~AsyncStorage() override {
    if (underWay_ != 0) std::abort();
  }

  bool synchronous() const override { return false; }
  std::optional<SharedPlace> sharedPlace() const override { return {}; }

  void write(Lane& lane, uint64_t offset, std::span<const float> values, Done done) override {
    queue<Status>(lane, std::move(done), [this, offset, values](AsyncLane& own, Done done) {
      ForwardingStorage::write(own.host(), offset, values, std::move(done));
    });
  }
  void apply(Lane& lane, uint64_t offset, const Gradient& gradient, const UpdateScalars& update,
             Done done) override {
    queue<Status>(lane, std::move(done), [this, offset, gradient, update](AsyncLane& own, Done done) {
      ForwardingStorage::apply(own.host(), offset, gradient, update, std::move(done));
    });
  }
  void applyChanged(Lane& lane, uint64_t offset, const Gradient& gradient, const GradientChange& change,
                    const UpdateScalars& update, Done done) override {
    queue<Status>(lane, std::move(done), [this, offset, gradient, change, update](AsyncLane& own, Done done) {
      ForwardingStorage::applyChanged(own.host(), offset, gradient, change, update, std::move(done));
    });
  }
  void stage(Lane& lane, ReadView gradient, StageDone done) override {
    auto memory = acquireForGradient(*gradients_, gradient.values.size());
    queue<Result<StagedGradient>>(lane, std::move(done),
                                  [memory, gradient = std::move(gradient)](AsyncLane&, StageDone done) {
                                    if (!memory.ok()) return done(memory.error());
                                    racyCopy(gradient.values.size(), gradient.values.data(), memory->get());
                                    done(StagedGradient{{memory->get(), gradient.values.size()}, *memory});
                                  });
  }
  void squaredDistances(Lane& lane, std::span<const StagedGradient> gradients, DistancesDone done) override {
    queue<Result<SquaredDistances>>(lane, std::move(done),
                                    [this, all = viewsOf(gradients)](AsyncLane& own, DistancesDone done) {
                                      ForwardingStorage::squaredDistances(own.host(), all, std::move(done));
                                    });
  }
  void addProducts(Lane& lane, std::span<const StagedGradient> gradients, uint64_t offset, uint64_t count,
                   InnerProducts sums, ProductsDone done) override {
    queue<Result<InnerProducts>>(lane, std::move(done),
                                 [this, all = viewsOf(gradients), offset, count, sums = std::move(sums)](
                                     AsyncLane& own, ProductsDone done) {
                                   ForwardingStorage::addProducts(own.host(), all, offset, count, sums,
                                                                  std::move(done));
                                 });
  }
  void combinedSquare(Lane& lane, std::span<const StagedGradient> gradients, const Combination& combination,
                      SquareDone done) override {
    queue<Result<double>>(lane, std::move(done),
                          [this, all = viewsOf(gradients), combination](AsyncLane& own, SquareDone done) {
                            ForwardingStorage::combinedSquare(own.host(), all, combination, std::move(done));
                          });
  }
  void applyCombined(Lane& lane, std::span<const StagedGradient> gradients, const Combination& combination,
                     const UpdateScalars& update, Done done) override {
    queue<Status>(lane, std::move(done),
                  [this, all = viewsOf(gradients), combination, update](AsyncLane& own, Done done) {
                    ForwardingStorage::applyCombined(own.host(), all, combination, update, std::move(done));
                  });
  }
  void combine(Lane& lane, std::span<const StagedGradient> gradients, const Combination& combination,
               ReadDone done) override {
    queue<Result<ReadView>>(lane, std::move(done),
                            [this, all = viewsOf(gradients), combination](AsyncLane& own, ReadDone done) {
                              ForwardingStorage::combine(own.host(), all, combination, std::move(done));
                            });
  }
  void read(Lane& lane, uint64_t offset, uint64_t count, ReadDone done) override {
    snapshot(lane, offset, count, std::move(done));
  }
  void snapshot(Lane& lane, uint64_t offset, uint64_t count, ReadDone done) override {
    queue<Result<ReadView>>(lane, std::move(done), [this, offset, count](AsyncLane& own, ReadDone done) {
      ForwardingStorage::snapshot(own.host(), offset, count, std::move(done));
    });
  }
  void readSlot(Lane& lane, uint32_t slot, uint64_t offset, uint64_t count, ReadDone done) override {
    queue<Result<ReadView>>(
        lane, std::move(done), [this, slot, offset, count](AsyncLane& own, ReadDone done) {
          const auto memory = own.buffer(count);
          if (!memory.ok()) return done(memory.error());
          ForwardingStorage::readSlot(own.host(), slot, offset, count, [&](Result<ReadView> live) {
            racyCopy(count, live->values.data(), memory->get());
            done(ReadView{{memory->get(), count}, *memory});
          });
        });
  }
  void writeSlot(Lane& lane, uint32_t slot, uint64_t offset, std::span<const float> values,
                 Done done) override {
    queue<Status>(lane, std::move(done), [this, slot, offset, values](AsyncLane& own, Done done) {
      ForwardingStorage::writeSlot(own.host(), slot, offset, values, std::move(done));
    });
  }

 private:
  /// Non-owning views: the caller keeps the owners.
  static std::vector<StagedGradient> viewsOf(std::span<const StagedGradient> gradients) {
    std::vector<StagedGradient> views;
    for (const StagedGradient& gradient : gradients) views.push_back({gradient.values, nullptr});
    return views;
  }

  /// `operation(lane, done)` runs on the lane's thread. Once `outcome` is delivered the caller may release
  /// everything.
  template <class Outcome, class Operation>
  void queue(Lane& lane, std::function<void(Outcome)> done, Operation operation) {
    auto& own = static_cast<AsyncLane&>(lane);
    underWay_++;
    own.queue([this, &own, done = std::move(done), operation = std::move(operation)] {
      operation(own, [this, &done](Outcome outcome) {
        underWay_--;
        done(std::move(outcome));
      });
    });
  }

  const std::shared_ptr<StagingPool> gradients_;
  std::atomic<uint64_t> underWay_ = 0;
};

/// The CPU backend as an asynchronous device with memory of its own for staged gradients. Thread-safe.
class AsyncBackend final : public WrappingBackend {
 public:
  std::unique_ptr<Lane> makeLane() override {
    return std::make_unique<AsyncLane>(WrappingBackend::makeLane(), gate_);
  }
  void limitStagedBytes(uint64_t bytes) override { gradients_->setLentBytesMax(bytes); }
  /// Bytes in use for staged gradients.
  uint64_t stagedBytes() const { return gradients_->lentBytes(); }
  OperationGate& gate() { return *gate_; }

 private:
  std::unique_ptr<ShardStorage> wrap(std::unique_ptr<ShardStorage> storage) override {
    return std::make_unique<AsyncStorage>(std::move(storage), gradients_);
  }

  const std::shared_ptr<OperationGate> gate_ = std::make_shared<OperationGate>();
  const std::shared_ptr<StagingPool> gradients_ =
      StagingPool::make(StagingPool::hostMemory(), {.lentBytesMax = UINT64_MAX, .idleBytesMax = 0});
};

/// A device for tests that must pass on each kind.
struct TestDevice {
  const char* name;
  std::shared_ptr<Backend> (*make)();
};

inline constexpr TestDevice kCpu{"cpu", [] { return makeCpuBackend(); }};
/// A device that runs everything later on another thread.
inline constexpr TestDevice kAsynchronous{
    "asynchronous device", []() -> std::shared_ptr<Backend> { return std::make_shared<AsyncBackend>(); }};

inline constexpr TestDevice kCuda{"CUDA device", [] { return openTestCuda(); }};

/// Yields one device after another: the test case runs once for each. PSD_TEST_DEVICE replaces all of them.
inline TestDevice eachDevice() {
  if (testsCuda()) return kCuda;
  return GENERATE(kCpu, kAsynchronous);
}

}  // namespace psd::testing

/// TEST_CASE whose body runs once for each device, as `device`, a psd::testing::TestDevice.
#define DEVICE_TEST(...) PSD_DEVICE_TEST_OF(INTERNAL_CATCH_UNIQUE_NAME(deviceTest), __VA_ARGS__)
#define PSD_DEVICE_TEST_OF(function, ...)                               \
  static void function(const psd::testing::TestDevice& device);         \
  TEST_CASE(__VA_ARGS__) {                                              \
    const psd::testing::TestDevice device = psd::testing::eachDevice(); \
    INFO(device.name);                                                  \
    function(device);                                                   \
  }                                                                     \
  static void function([[maybe_unused]] const psd::testing::TestDevice& device)

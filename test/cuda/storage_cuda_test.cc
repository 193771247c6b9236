// The CUDA store, compared with the CPU store. Without a device every case is skipped.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "server/optimizer/optimizer_config.h"
#include "test/contract/codec_trainer.h"
#include "test/cuda/device_or_skip.h"
#include "test/support/catch.h"
#include "test/support/random.h"
#include "test/support/storage_calls.h"

namespace psd::storage_cuda_test {
namespace {

using testing::copyOf;
using testing::deviceOrSkip;
using testing::normalValues;
using testing::StorageCalls;

Optimizer parse(const std::string& json) {
  ObjectReader reader(nlohmann::ordered_json::parse(json));
  Optimizer optimizer = readOptimizer(reader);
  PSD_REQUIRE_OK(reader.finish());
  return optimizer;
}

std::vector<std::unique_ptr<ShardStorage>> allocate(Backend& backend, std::vector<uint64_t> counts,
                                                    const Optimizer& optimizer) {
  auto shards = backend.allocate(counts, optimizer);
  PSD_REQUIRE_OK(shards);
  return std::move(*shards);
}

std::vector<float> mustRead(Result<ReadView> view) {
  PSD_REQUIRE_OK(view);
  return copyOf(*view);
}

/// Weights, then each slot, after some updates of two slices, the second encoded by the codec.
std::vector<std::vector<float>> train(Backend& backend, const Optimizer& optimizer,
                                      const std::string& codecName = "none") {
  const auto codec = testing::codecNamed(codecName);
  constexpr uint64_t kElements = 300007;
  constexpr uint64_t kCut = 100000;
  const auto shards = allocate(backend, {kElements}, optimizer);
  StorageCalls storage(backend, *shards[0]);
  PSD_REQUIRE_OK(storage.write(0, normalValues(kElements, 1)));
  for (uint64_t number = 1; number <= 8; ++number) {
    const UpdateScalars update{number, optimizer.learningRate(number)};
    const std::vector<float> gradient = normalValues(kElements, 1 + number);
    PSD_REQUIRE_OK(storage.apply(0, std::span(gradient).first(kCut), update));
    const auto second = std::span(gradient).subspan(kCut);
    testing::EncodedBytes bytes(codec->encodedBytes(second.size()));
    PSD_REQUIRE_OK(codec->encode(second, number, bytes.data()));
    PSD_REQUIRE_OK(storage.apply(kCut, Gradient(*codec, bytes.span(), second.size()), update));
  }
  std::vector<std::vector<float>> state{mustRead(storage.read(0, kElements))};
  for (uint32_t slot = 0; slot < optimizer.slotCount(); ++slot) {
    state.push_back(mustRead(storage.readSlot(slot, 0, kElements)));
  }
  return state;
}

TEST_CASE("a slot on CUDA takes values at their offset and nowhere else") {
  const auto cuda = deviceOrSkip();
  const auto shards = allocate(*cuda, {1000}, parse(R"({"type": "adam"})"));
  StorageCalls storage(*cuda, *shards[0]);
  const std::vector<float> values = normalValues(300, 7);
  PSD_REQUIRE_OK(storage.writeSlot(1, 160, values));
  std::vector<float> expected(1000, 0.f);
  std::copy(values.begin(), values.end(), expected.begin() + 160);
  CHECK((mustRead(storage.readSlot(1, 0, 1000)) == expected));
  CHECK((mustRead(storage.readSlot(0, 0, 1000)) == std::vector<float>(1000, 0.f)));
}

TEST_CASE("a gradient of every codec gives the same bits on CUDA and on the CPU") {
  const auto cuda = deviceOrSkip();
  const auto cpu = makeCpuBackend();
  for (const char* options : {R"({"type": "sgd"})", R"({"type": "adam"})"}) {
    for (const std::string_view codec : codecNames()) {
      INFO(options << ", " << codec);
      const Optimizer optimizer = parse(options);
      CHECK(train(*cuda, optimizer, std::string(codec)) == train(*cpu, optimizer, std::string(codec)));
    }
  }
}

/// Weights after one sparse gradient of `count` values for all but the first 16 and the last 5.
std::vector<float> withSparse(Backend& backend, const Codec& codec, const Codec::Bytes& bytes,
                              uint64_t count) {
  const auto shards = allocate(backend, {count + 21}, parse(R"({"lr": 0.1})"));
  StorageCalls storage(backend, *shards[0]);
  PSD_REQUIRE_OK(storage.write(0, normalValues(count + 21, 11)));
  PSD_REQUIRE_OK(storage.apply(16, Gradient(codec, bytes, count), {1, 0.1}));
  return mustRead(storage.read(0, count + 21));
}

TEST_CASE("a sparse gradient of any density gives the same bits on CUDA and on the CPU") {
  const auto cuda = deviceOrSkip();
  const auto cpu = makeCpuBackend();
  // The densest has more entries than a lane's scratch memory holds at once.
  for (const char* spec : {"topk:fraction=0.000001", "topk:fraction=0.01", "topk:fraction=1",
                           "randk:fraction=0.3", "dgc:fraction=0.7"}) {
    const auto codec = testing::codecNamed(spec);
    for (const uint64_t count : {1u, 17u, 65'537u, 1'300'000u}) {
      INFO(spec << ", " << count << " values");
      testing::EncodedBytes bytes(codec->encodedBytes(count));
      PSD_REQUIRE_OK(codec->encode(normalValues(count, count), 3, bytes.data()));
      CHECK(
          (withSparse(*cuda, *codec, bytes.span(), count) == withSparse(*cpu, *codec, bytes.span(), count)));
    }
  }
}

TEST_CASE("a sparse gradient without entries changes nothing on CUDA") {
  const auto cuda = deviceOrSkip();
  const auto codec = testing::codecNamed("topk");
  const testing::EncodedBytes none(2 * sizeof(uint32_t));  // no values; the only group counts zero
  PSD_REQUIRE_OK(codec->check(none.span(), 1000));
  CHECK((withSparse(*cuda, *codec, none.span(), 1000) == normalValues(1021, 11)));
}

TEST_CASE("every optimizer gives the same bits on CUDA and on the CPU") {
  const auto cuda = deviceOrSkip();
  const auto cpu = makeCpuBackend();
  for (const char* options : {
           R"({"type": "sgd", "weight_decay": 0.01})",
           R"({"type": "sgd", "momentum": 0.9, "dampening": 0.1})",
           R"({"type": "sgd", "momentum": 0.9, "nesterov": true, "weight_decay": 0.01})",
           R"({"type": "adagrad", "lr_decay": 0.1, "initial_accumulator_value": 0.5})",
           R"({"type": "rmsprop"})",
           R"({"type": "rmsprop", "momentum": 0.9})",
           R"({"type": "rmsprop", "centered": true})",
           R"({"type": "rmsprop", "momentum": 0.9, "centered": true, "weight_decay": 0.01})",
           R"({"type": "adadelta", "weight_decay": 0.01})",
           R"({"type": "adam", "weight_decay": 0.01})",
           R"({"type": "adam", "amsgrad": true})",
           R"({"type": "adamw"})",
           R"({"type": "adamw", "amsgrad": true})",
           R"({"type": "ftrl"})",
           R"({"type": "ftrl", "l1": 0.1, "l2": 0.01, "beta": 0, "initial_accumulator_value": 0.1})",
           R"({"type": "lion", "weight_decay": 0.01})",
       }) {
    INFO(options);
    const Optimizer optimizer = parse(options);
    const auto onCuda = train(*cuda, optimizer);
    const auto onCpu = train(*cpu, optimizer);
    REQUIRE(onCuda.size() == onCpu.size());
    for (size_t i = 0; i < onCuda.size(); ++i) {
      INFO((i == 0 ? "weights" : "slot ") << (i == 0 ? "" : std::to_string(i - 1)));
      CHECK((onCuda[i] == onCpu[i]));
    }
  }
}

TEST_CASE("short and ragged slices are updated to their last element") {
  const auto cuda = deviceOrSkip();
  const Optimizer optimizer = parse(R"({"lr": 1, "momentum": 0.5})");
  for (const uint64_t count : {1, 2, 3, 4, 5, 7, 17, 1023, 1025}) {
    INFO(count << " elements");
    const auto shards = allocate(*cuda, {count, 64}, optimizer);
    StorageCalls storage(*cuda, *shards[0]);
    PSD_REQUIRE_OK(storage.apply(0, std::vector<float>(count, 1.f), {1, 1.0}));
    CHECK(mustRead(storage.read(0, count)) == std::vector<float>(count, -1.f));
    StorageCalls next(*cuda, *shards[1]);
    CHECK(mustRead(next.read(0, 64)) == std::vector<float>(64, 0.f));
  }
}

TEST_CASE("a slice beyond one pass of the grid, larger than the first scratch") {
  const auto cuda = deviceOrSkip();
  constexpr uint64_t kElements = 5000003;
  const Optimizer optimizer = parse(R"({"lr": 1})");
  const auto shards = allocate(*cuda, {kElements}, optimizer);
  StorageCalls storage(*cuda, *shards[0]);
  PSD_REQUIRE_OK(storage.apply(0, std::vector<float>(16, 1.f), {1, 1.0}));
  PSD_REQUIRE_OK(storage.apply(0, std::vector<float>(kElements, 2.f), {2, 1.0}));
  std::vector<float> expected(kElements, -2.f);
  std::fill_n(expected.begin(), 16, -3.f);
  CHECK((mustRead(storage.read(0, kElements)) == expected));
}

TEST_CASE("a slice with more pieces than there are staging buffers, which take turns") {
  const auto cuda = deviceOrSkip();
  constexpr uint64_t kElements = 37 * (uint64_t{1} << 20) + 16 * 5 + 3;
  const Optimizer optimizer = parse(R"({"lr": 1})");
  const auto shards = allocate(*cuda, {kElements}, optimizer);
  StorageCalls storage(*cuda, *shards[0]);
  std::vector<float> gradient(kElements), expected(kElements);
  for (uint64_t i = 0; i < kElements; ++i) {
    gradient[i] = static_cast<float>(i % 8191);
    expected[i] = -2 * gradient[i];
  }
  PSD_REQUIRE_OK(storage.write(0, gradient));
  CHECK((mustRead(storage.read(0, kElements)) == gradient));
  PSD_REQUIRE_OK(storage.write(0, std::vector<float>(kElements, 0.f)));
  for (uint64_t number : {1, 2}) PSD_REQUIRE_OK(storage.apply(0, gradient, {number, 1.0}));
  CHECK((mustRead(storage.read(0, kElements)) == expected));
}

TEST_CASE("slow readers on CUDA block no other call, however much they hold") {
  const auto cuda = deviceOrSkip();
  constexpr uint64_t kElements = uint64_t{32} << 20;
  const auto shards = allocate(*cuda, {kElements}, parse(R"({"lr": 1})"));
  StorageCalls storage(*cuda, *shards[0]);
  std::vector<ReadView> held;
  for (int version = 0; version < 12; ++version) {  // 1.5 GiB
    auto read = storage.snapshot(0, kElements);
    PSD_REQUIRE_OK(read);
    held.push_back(*std::move(read));
    PSD_REQUIRE_OK(storage.apply(0, std::vector<float>(kElements, -1.f), {1, 1.0}));
  }
  for (size_t version = 0; version < held.size(); ++version) {
    INFO("version " << version);
    const auto values = held[version].values;
    CHECK(std::all_of(values.begin(), values.end(), [&](float value) { return value == float(version); }));
  }
}

TEST_CASE("operations of one lane happen in the order of the calls, and end on another thread") {
  const auto cuda = deviceOrSkip();
  constexpr uint64_t kElements = 100000;
  constexpr int kRounds = 50;
  const Optimizer optimizer = parse(R"({"lr": 1})");
  const auto shards = allocate(*cuda, {kElements}, optimizer);
  ShardStorage& storage = *shards[0];
  REQUIRE(!storage.synchronous());
  // Different values each time, in reused memory: a late copy would deliver the next ones.
  std::vector<std::vector<float>> gradients;
  for (int round = 1; round <= kRounds; ++round) gradients.emplace_back(kElements, static_cast<float>(round));

  // Nothing is awaited until all is queued; the callbacks of a lane run one at a time.
  std::vector<ReadView> views;
  std::vector<std::string> errors;
  bool onThisThread = false;
  std::promise<void> ended;
  const auto lane = cuda->makeLane();  // last, so that it is destroyed first and waits for the callbacks
  for (int round = 1; round <= kRounds; ++round) {
    storage.apply(*lane, 0, gradients[round - 1], {1, 1.0}, [&](Status status) {
      if (!status.ok()) errors.push_back(status.message());
    });
    storage.snapshot(*lane, 0, kElements,
                     [&, round, caller = std::this_thread::get_id()](Result<ReadView> view) {
                       onThisThread |= std::this_thread::get_id() == caller;
                       if (view.ok()) {
                         views.push_back(*view);
                       } else {
                         errors.push_back(view.message());
                       }
                       if (round == kRounds) ended.set_value();
                     });
  }
  REQUIRE(ended.get_future().wait_for(std::chrono::minutes(1)) == std::future_status::ready);
  CHECK(errors.empty());
  CHECK(!onThisThread);
  REQUIRE(views.size() == kRounds);
  for (int round = 1; round <= kRounds; ++round) {
    const std::vector<float> expected(kElements, -0.5f * static_cast<float>(round * (round + 1)));
    REQUIRE((copyOf(views[round - 1]) == expected));
  }
}

TEST_CASE("a read outlives its lane and its storage") {
  const auto cuda = deviceOrSkip();
  const std::vector<float> values = normalValues(1000, 5);
  Result<ReadView> view = ReadView{};
  {
    const auto shards = allocate(*cuda, {1000}, parse("{}"));
    StorageCalls storage(*cuda, *shards[0]);
    PSD_REQUIRE_OK(storage.write(0, values));
    view = storage.read(0, 1000);
  }
  CHECK(mustRead(view) == values);
}

TEST_CASE("lanes that race lose no more than the provable bounds allow") {
  const auto cuda = deviceOrSkip();
  constexpr uint64_t kElements = 65536;
  constexpr int kLanes = 4;
  constexpr int kUpdates = 50;
  const auto shards = allocate(*cuda, {kElements}, parse(R"({"lr": 1})"));
  const std::vector<float> one(kElements, 1.f);
  std::atomic<int> failed = 0;
  std::vector<std::thread> loops;
  for (int i = 0; i < kLanes; ++i) {
    loops.emplace_back([&] {
      StorageCalls storage(*cuda, *shards[0]);
      for (int update = 0; update < kUpdates; ++update) {
        if (!storage.apply(0, one, {1, 1.0}).ok()) ++failed;
      }
    });
  }
  for (std::thread& loop : loops) loop.join();
  CHECK(failed == 0);
  StorageCalls storage(*cuda, *shards[0]);
  for (const float value : mustRead(storage.read(0, kElements))) {
    REQUIRE(value <= -1.f);
    REQUIRE(value >= -1.f * kLanes * kUpdates);
  }
}

TEST_CASE("an allocation beyond the device's memory is refused with its bytes") {
  const auto cuda = deviceOrSkip();
  const uint64_t huge[] = {uint64_t{1} << 50};
  const auto refused = cuda->allocate(huge, parse("{}"));
  REQUIRE(!refused.ok());
  CHECK(refused.error().code == ErrorCode::overloaded);
  CHECK_THAT(refused.message(), Catch::Matchers::Contains("4503599627370496 bytes"));
}

TEST_CASE("a device that is not there is refused, on any machine") {
  const auto found = cudaDeviceCount();
  const int count = found.ok() ? *found : 0;
  for (const int index : {-1, count, count + 7}) {
    const auto backend = makeCudaBackend(index);
    REQUIRE(!backend.ok());
    CHECK(backend.error().code == ErrorCode::invalidArgument);
    CHECK_THAT(backend.message(), Catch::Matchers::Contains("cuda:" + std::to_string(index)) &&
                                      Catch::Matchers::Contains(std::to_string(count)));
  }
}

}  // namespace
}  // namespace psd::storage_cuda_test

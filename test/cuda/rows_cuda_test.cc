// Embedding rows in the memory of a CUDA device, compared with rows in host memory: equal bits.

#include <atomic>
#include <cmath>
#include <mutex>
#include <thread>
#include <vector>

#include "test/cuda/device_or_skip.h"
#include "test/support/any_optimizer.h"
#include "test/support/row_ids.h"
#include "test/support/row_model.h"

namespace psd::rows_cuda_test {
namespace {

using testing::contentOf;
using testing::deviceOrSkip;
using testing::makeTableOn;
using testing::mixedIds;
using testing::Random;
using testing::sameBits;

using Ids = std::vector<uint64_t>;

/// A host table and a device table with the same content.
struct Both {
  Both(uint32_t dim, const Optimizer& optimizer, const RowInitial& initial = {})
      : device(deviceOrSkip()),
        onHost(makeTableOn(*makeCpuBackend(), dim, optimizer, {.initial = initial})),
        onDevice(makeTableOn(*device, dim, optimizer, {.initial = initial})) {}

  void insert(const Ids& ids, Version version) {
    for (RowTable* const table : {onHost.get(), onDevice.get()}) {
      PSD_REQUIRE_OK(table->insertMissing(ids, version));
    }
  }
  void apply(const Ids& ids, const std::vector<float>& gradients, const RowChange& change,
             const UpdateScalars& update, bool rowSteps) {
    for (RowTable* const table : {onHost.get(), onDevice.get()}) {
      table->apply(ids, gradients, change, update, rowSteps, Version{update.number});
    }
  }
  void requireSame(const Ids& ids) const {
    std::vector<float> host(ids.size() * onHost->dim()), there(host.size(), -77.f);
    const uint64_t known = onHost->gather(ids, host);
    REQUIRE(onDevice->gather(ids, there) == known);
    REQUIRE(sameBits(host, there));
    const auto expected = contentOf(*onHost), content = contentOf(*onDevice);
    REQUIRE(content.size() == expected.size());
    for (const auto& [id, row] : expected) {
      REQUIRE(content.at(id).meta == row.meta);
      REQUIRE(sameBits(content.at(id).planes, row.planes));
    }
  }

  const std::shared_ptr<Backend> device;
  const std::unique_ptr<RowTable> onHost, onDevice;
};

std::vector<Optimizer> allOptimizers() {
  std::vector<Optimizer> all = testing::everyOptimizerOfRows(1);
  for (const Optimizer& optimizer : testing::optimizersOfWholeRows()) all.push_back(optimizer);
  return all;
}

TEST_CASE("rows on a device have the bits of rows on the host, under every optimizer") {
  for (const Optimizer& optimizer : allOptimizers()) {
    for (const uint32_t dim : {3u, 32u}) {
      INFO(optimizer.describe() << ", dim " << dim);
      Random random(dim);
      Both both(dim, optimizer, {RowInitial::Kind::normal, 0.5f, 9});
      Ids ids;
      for (uint64_t number = 1; number <= 4; number++) {
        const Ids more = mixedIds(300, random);
        ids.insert(ids.end(), more.begin(), more.end());  // rows repeat in a call
        both.insert(Ids(ids.begin(), ids.end() - 50), Version{number});
        const RowChange change =
            number % 2 == 0 ? RowChange{.scale = 0.5f, .limit = 1.f, .rowNorm = 0.7f} : RowChange{};
        both.apply(ids, testing::mixedGradient(ids.size() * dim, random), change,
                   {number, optimizer.learningRate(number)}, number > 2);
      }
      both.requireSame(ids);
    }
  }
}

TEST_CASE("rows begin on a device as they begin on the host") {
  for (const auto kind : {RowInitial::Kind::zero, RowInitial::Kind::uniform, RowInitial::Kind::normal}) {
    for (const uint32_t dim : {1u, 7u, 64u, 4096u}) {
      Random random(dim);
      Both both(dim, {Adagrad{.initialAccumulatorValue = 0.25}, 0.1, {}}, {kind, 0.3f, 77});
      const Ids ids = mixedIds(dim > 1000 ? 100 : 2000, random);
      both.insert(ids, Version{1});
      both.requireSame(ids);
    }
  }
}

TEST_CASE("more rows than a buffer holds go through in pieces") {
  constexpr uint32_t kDim = 64;
  Both both(kDim, {Adam{}, 0.1, {}});
  Random random(4);
  Ids ids;
  for (uint64_t i = 0; i < 40'000; i++) ids.push_back(i % 30'000);
  both.insert(ids, Version{1});
  both.apply(ids, testing::mixedGradient(ids.size() * kDim, random), {}, {1, 0.1}, true);
  both.requireSame(ids);
}

TEST_CASE("what was read of one device's rows is put back on the other, with the optimizer's state") {
  for (const Optimizer& optimizer : {Optimizer{Adam{}, 0.1, {}}, Optimizer{RowwiseAdagrad{}, 0.1, {}}}) {
    Both both(5, optimizer), back(5, optimizer);
    Random random(8);
    const Ids ids = mixedIds(6000, random);
    both.insert(ids, Version{1});
    both.apply(ids, testing::mixedGradient(ids.size() * 5, random), {}, {1, 0.1}, true);
    const auto copy = [](const RowTable& from, RowTable& to) {
      Ids all;
      std::vector<RowMeta> metas;
      std::vector<std::vector<float>> planes(from.layout().planeCount());
      for (const auto& [id, row] : contentOf(from)) {
        all.push_back(id);
        metas.push_back(row.meta);
        for (size_t p = 0; p < planes.size(); p++) {
          planes[p].insert(planes[p].end(), row.planes[p].begin(), row.planes[p].end());
        }
      }
      PSD_REQUIRE_OK(
          to.restore(all, metas, std::vector<std::span<const float>>(planes.begin(), planes.end())));
    };
    copy(*both.onHost, *back.onDevice);
    copy(*both.onDevice, *back.onHost);
    back.requireSame(ids);
    back.apply(ids, testing::mixedGradient(ids.size() * 5, random), {}, {2, 0.1}, true);
    back.requireSame(ids);
  }
}

TEST_CASE("under a lock no step of a row is lost, whichever stream makes it, and readers see whole floats") {
  const auto device = deviceOrSkip();
  const auto table = makeTableOn(*device, 16, {Sgd{}, 1.0, {}}, {.initial = {RowInitial::Kind::zero}});
  constexpr uint64_t kThreads = 4, kSteps = 30;
  Ids ids;
  for (uint64_t id = 0; id < 500; id++) ids.push_back(id);
  PSD_REQUIRE_OK(table->insertMissing(ids, Version{1}));
  const std::vector<float> gradients(ids.size() * 16, -1.f);
  std::mutex lock;
  std::atomic<uint64_t> wrong{0};
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < kThreads; i++) {
    threads.emplace_back([&] {
      std::vector<float> out(gradients.size());
      for (uint64_t step = 0; step < kSteps; step++) {
        {
          const std::lock_guard guard(lock);
          table->apply(ids, gradients, {}, {1, 1.}, false, Version{2});
        }
        table->gather(ids, out);
        for (const float value : out)
          wrong += value < 1 || value > kThreads * kSteps || value != std::floor(value);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
  std::vector<float> out(gradients.size());
  table->gather(ids, out);
  CHECK(std::ranges::all_of(out, [](float value) { return value == kThreads * kSteps; }));
  CHECK(table->state().ok());
}

}  // namespace
}  // namespace psd::rows_cuda_test

// Tables under several threads; with ThreadSanitizer, proof that only the loops documented as racing do.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <numeric>
#include <thread>
#include <vector>

#include "server/store/derived_weights.h"
#include "test/support/any_optimizer.h"
#include "test/support/row_ids.h"
#include "test/support/row_model.h"
#include "test/support/together.h"

namespace psd {
namespace {

using testing::makeTable;
using testing::Random;

constexpr uint32_t kDim = 19;

/// Requires rows whose content identifies their id: its initial values and no other row's.
void requireOwn(std::span<const uint64_t> ids, std::span<const float> out, std::atomic<uint64_t>& wrong) {
  std::vector<float> own(kDim);
  for (size_t i = 0; i < ids.size(); i++) {
    RowInitial{}.fill(ids[i], own);
    if (!std::equal(own.begin(), own.end(), out.begin() + static_cast<ptrdiff_t>(i * kDim))) ++wrong;
  }
}

TEST_CASE("readers see whole rows of their ids while a writer creates and removes rows") {
  const auto table = makeTable(kDim);
  constexpr uint64_t kIds = 30'000, kWrites = 60;
  std::atomic<bool> done{false};
  std::atomic<uint64_t> wrong{0}, known{0}, moved{0};
  std::vector<std::thread> readers;
  for (uint64_t seed = 0; seed < 3; seed++) {
    readers.emplace_back([&, seed] {
      Random random(seed);
      std::vector<uint64_t> ids(200);
      std::vector<float> out(ids.size() * kDim);
      std::vector<uint32_t> rows(ids.size());
      do {
        for (uint64_t& id : ids) id = random.below(kIds);
        known += table->gather(ids, out);
        requireOwn(ids, out, wrong);
        // A row number keeps its id while a guard lives, so that both reads see the same row.
        const Epochs::Guard guard(table->epochs());
        table->find(ids, rows);
        for (size_t i = 0; i < rows.size(); i++) {
          if (rows[i] == kNoRow) continue;
          table->readPlane(0, std::span(rows).subspan(i, 1), std::span(out).subspan(i * kDim, kDim));
          std::vector<float> own(kDim);
          RowInitial{}.fill(ids[i], own);
          if (!std::equal(own.begin(), own.end(), out.begin() + static_cast<ptrdiff_t>(i * kDim))) ++moved;
        }
      } while (!done);
    });
  }
  Random random(99);
  for (uint64_t write = 0; write < kWrites; write++) {
    std::vector<uint64_t> ids(2000);
    for (uint64_t& id : ids) id = random.below(kIds);
    PSD_REQUIRE_OK(table->insertMissing(ids, Version{write}));
    for (uint64_t& id : ids) id = random.below(kIds);
    if (write % 2 == 1) PSD_REQUIRE_OK(table->erase(ids));
  }
  done = true;
  for (std::thread& reader : readers) reader.join();
  CHECK(wrong == 0);
  CHECK(moved == 0);
  CHECK(known > 0);
  CHECK(table->size().splits > 0);
}

TEST_CASE("concurrent gradients reach distinct rows whole, and shared ones as floats") {
  const auto table = makeTable(kDim, {}, {.initial = {RowInitial::Kind::zero}});
  constexpr uint64_t kThreads = 4, kOwn = 500, kTimes = 40, kShared = 1 << 30;
  std::vector<uint64_t> all;
  for (uint64_t id = 0; id < kThreads * kOwn; id++) all.push_back(id);
  for (uint64_t id = 0; id < 50; id++) all.push_back(kShared + id);
  PSD_REQUIRE_OK(table->insertMissing(all, Version{1}));
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < kThreads; thread++) {
    threads.emplace_back([&, thread] {
      std::vector<uint64_t> ids;
      for (uint64_t i = 0; i < kOwn; i++) ids.push_back(thread * kOwn + i);
      for (uint64_t id = 0; id < 50; id++) ids.push_back(kShared + id);
      const std::vector<float> gradients(ids.size() * kDim, -1.f);
      for (uint64_t time = 0; time < kTimes; time++) {
        table->apply(ids, gradients, {}, {1, 1.}, time % 2 == 0, Version{time});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<float> out(all.size() * kDim);
  CHECK(table->gather(all, out) == all.size());
  for (size_t i = 0; i < out.size(); i++) {
    if (i < kThreads * kOwn * kDim) {
      REQUIRE(out[i] == kTimes);
    } else {
      // Updates may be lost: at least one thread's last, at most all.
      REQUIRE(out[i] >= 1);
      REQUIRE(out[i] <= kThreads * kTimes);
      REQUIRE(out[i] == std::floor(out[i]));
    }
  }
}

TEST_CASE("after steps that raced, rows of ftrl have the weights of their state") {
  constexpr uint32_t kThreads = 2;
  Ftrl plain;
  plain.l1 = 0.01;
  GroupFtrl grouped;
  grouped.groupL1 = 0.1;
  for (const AnyOptimizer& algorithm : {AnyOptimizer{plain}, AnyOptimizer{grouped}}) {
    const Optimizer optimizer{algorithm, 0.1, {}};
    INFO(optimizer.describe());
    const auto table = makeTable(kDim, optimizer, {.initial = {RowInitial::Kind::zero}});
    std::vector<uint64_t> ids(128);
    std::iota(ids.begin(), ids.end(), 1);
    PSD_REQUIRE_OK(table->insertMissing(ids, Version{1}));
    Random random(1);
    std::vector<std::vector<float>> gradients;
    for (uint32_t i = 0; i < kThreads; i++)
      gradients.push_back(testing::mixedGradient(ids.size() * kDim, random));
    uint64_t wrong = 0;
    // One step each: a later one would correct what an earlier one left.
    const auto step = [&](uint32_t thread) {
      table->apply(ids, gradients[thread], {}, {.number = 1, .learningRate = 0.1, .races = true}, true,
                   Version{2});
    };
    std::vector<uint32_t> rows(ids.size());
    table->find(ids, rows);
    std::vector<std::vector<float>> planes(3, std::vector<float>(ids.size() * kDim));
    const auto check = [&] {
      for (uint32_t plane = 0; plane < planes.size(); plane++) table->readPlane(plane, rows, planes[plane]);
      const std::vector<float> found = planes[0];
      deriveWeights(optimizer, kDim, std::vector<std::span<float>>(planes.begin(), planes.end()));
      wrong += planes[0] != found;
    };
    testing::runTogether(kThreads, testing::testsCuda() ? 200 : 10'000, step, check);
    CHECK(wrong == 0);
  }
}

TEST_CASE("gradients for rows that are removed meanwhile change no other row") {
  const auto table = makeTable(kDim, {}, {.initial = {RowInitial::Kind::zero}});
  constexpr uint64_t kStay = 3000, kGo = 3000;
  std::vector<uint64_t> stay, go;
  for (uint64_t id = 0; id < kStay; id++) stay.push_back(id);
  for (uint64_t id = 0; id < kGo; id++) go.push_back(1'000'000 + id);
  PSD_REQUIRE_OK(table->insertMissing(stay, Version{1}));
  std::atomic<bool> done{false};
  std::atomic<uint64_t> met{0};  // gradients whose row was present
  std::thread pushing([&] {
    const std::vector<float> gradients(go.size() * kDim, 1.f);
    do {
      met += table->apply(go, gradients, {}, {1, 1.}, true, Version{2});
    } while (!done);
  });
  uint64_t next = 2'000'000;
  for (int time = 0; time < 30; time++) {
    PSD_REQUIRE_OK(table->insertMissing(go, Version{1}));
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (time == 0 && met == 0 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    PSD_REQUIRE_OK(table->erase(go));
    // Rows that others create in place of those.
    std::vector<uint64_t> others;
    for (uint64_t i = 0; i < 500; i++) others.push_back(next++);
    PSD_REQUIRE_OK(table->insertMissing(others, Version{1}));
    stay.insert(stay.end(), others.begin(), others.end());
  }
  done = true;
  pushing.join();
  CHECK(met > 0);
  std::vector<float> out(stay.size() * kDim);
  CHECK(table->gather(stay, out) == stay.size());
  CHECK(std::count(out.begin(), out.end(), 0.f) == static_cast<ptrdiff_t>(out.size()));
}

TEST_CASE("guards of more threads than slots wait for each other") {
  Epochs epochs;
  std::atomic<uint64_t> ended{0};
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < 2 * Epochs::kGuardsMax; i++) {
    threads.emplace_back([&] {
      for (int time = 0; time < 50; time++) {
        const Epochs::Guard guard(epochs);
        epochs.passed(epochs.stamp());
        ++ended;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(ended == 100 * Epochs::kGuardsMax);
  CHECK(epochs.passed(epochs.stamp()));
}

}  // namespace
}  // namespace psd

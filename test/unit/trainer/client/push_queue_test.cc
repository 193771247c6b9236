#include <algorithm>
#include <map>
#include <numeric>
#include <vector>

#include <kj/debug.h>

#include "common/plan/shard_plan.h"
#include "test/support/catch.h"
#include "test/support/random.h"
#include "trainer/client/coverage.h"
#include "trainer/client/transport/slice_queue.h"

namespace psd::client_push_queue_test {
namespace {

using testing::Random;

/// A sent slice: a step and the index of the slice.
using Sent = std::pair<uint64_t, size_t>;

/// A daemon that answers on request. Owned by one thread.
struct ManualDaemon {
  explicit ManualDaemon(uint32_t window) : window(window) {}

  /// Starts a push with some ready slices; its result is added to `results`.
  void begin(uint64_t step, size_t slices, const std::vector<size_t>& readyAtOnce = {}) {
    auto done = queue.add(Step{step}, slices, window, [this, step](size_t slice) {
      sent.emplace_back(step, slice);
      auto answer = kj::newPromiseAndFulfiller<Status>();
      open[{step, slice}] = kj::mv(answer.fulfiller);
      mostOpen = std::max(mostOpen, open.size());
      return kj::mv(answer.promise);
    });
    waiting.push_back(done.then([this, step](Status status) { results[step] = status; },
                                [this, step](kj::Exception&& exception) {
                                  results[step] = {ErrorCode::internal, exception.getDescription().cStr()};
                                })
                          .eagerlyEvaluate(nullptr));
    ready(step, readyAtOnce);
  }
  void ready(uint64_t step, const std::vector<size_t>& slices) {
    queue.ready(Step{step}, slices);
    settle();
  }
  void answer(Sent which, Status status = {}) {
    open.at(which)->fulfill(kj::mv(status));
    open.erase(which);
    settle();
  }
  void settle() {
    kj::evalLast([] {}).wait(scope);
  }

  const uint32_t window;
  kj::EventLoop loop;
  kj::WaitScope scope{loop};
  SliceQueue queue;
  std::vector<Sent> sent;
  std::map<Sent, kj::Own<kj::PromiseFulfiller<Status>>> open;
  std::map<uint64_t, Status> results;
  size_t mostOpen = 0;
  std::vector<kj::Promise<void>> waiting;
};

TEST_CASE("slices of a push are sent as they become ready, within the window") {
  ManualDaemon daemon(2);
  daemon.begin(1, 4);
  CHECK(daemon.sent.empty());
  daemon.ready(1, {2});
  CHECK(daemon.sent == std::vector<Sent>{{1, 2}});
  daemon.ready(1, {3, 0});
  CHECK(daemon.sent == std::vector<Sent>{{1, 2}, {1, 3}});
  daemon.answer({1, 3});
  CHECK(daemon.sent.back() == Sent{1, 0});
  daemon.answer({1, 2});
  daemon.answer({1, 0});
  CHECK(daemon.results.empty());
  daemon.ready(1, {1});
  daemon.answer({1, 1});
  PSD_REQUIRE_OK(daemon.results.at(1));
}

TEST_CASE("a later push waits until the previous one has sent everything, not until it is answered") {
  ManualDaemon daemon(4);
  daemon.begin(1, 2);
  daemon.begin(2, 1, {0});
  CHECK(daemon.sent.empty());
  daemon.ready(1, {1});
  CHECK(daemon.sent == std::vector<Sent>{{1, 1}});
  daemon.ready(1, {0});
  CHECK(daemon.sent == std::vector<Sent>{{1, 1}, {1, 0}, {2, 0}});
  daemon.answer({2, 0});
  PSD_REQUIRE_OK(daemon.results.at(2));
  CHECK(daemon.results.count(1) == 0);
}

TEST_CASE("after a rejection the push sends no more, is done when all is answered, and the next continues") {
  ManualDaemon daemon(2);
  daemon.begin(1, 4, {0, 1, 2});
  daemon.begin(2, 1, {0});
  daemon.answer({1, 1}, {ErrorCode::nonFinite, "refused"});
  CHECK(daemon.sent == std::vector<Sent>{{1, 0}, {1, 1}, {2, 0}});
  CHECK(daemon.results.empty());
  daemon.answer({1, 0}, {ErrorCode::internal, "a later error"});
  CHECK(daemon.results.at(1).message() == "refused");
  daemon.ready(1, {3});  // comes too late and does nothing
  daemon.answer({2, 0});
  PSD_REQUIRE_OK(daemon.results.at(2));
}

TEST_CASE("an abandoned push lets the next one send, and its sent slices are waited for") {
  ManualDaemon daemon(4);
  daemon.begin(1, 3, {0});
  daemon.begin(2, 1, {0});
  daemon.queue.giveUp(Step{1});
  daemon.settle();
  CHECK(daemon.sent == std::vector<Sent>{{1, 0}, {2, 0}});
  CHECK(daemon.results.empty());
  daemon.answer({1, 0});
  CHECK(daemon.results.at(1).error().code == ErrorCode::invalidArgument);
  daemon.begin(3, 1);
  daemon.queue.giveUp(Step{3});
  daemon.settle();
  CHECK(daemon.results.count(3) == 1);  // nothing was sent: done immediately
}

TEST_CASE("a broken connection ends every push that has sent something") {
  ManualDaemon daemon(4);
  daemon.begin(1, 1, {0});
  daemon.begin(2, 2, {1});
  for (auto& [which, answer] : daemon.open) answer->reject(KJ_EXCEPTION(DISCONNECTED, "gone"));
  daemon.settle();
  CHECK(daemon.results.at(1).message() == "gone");
  CHECK(daemon.results.at(2).message() == "gone");
}

TEST_CASE("a step in flight is not started again") {
  ManualDaemon daemon(1);
  daemon.begin(1, 1);
  daemon.begin(1, 1);
  CHECK(daemon.results.at(1).error().code == ErrorCode::invalidArgument);
}

TEST_CASE("any order of readiness and answers keeps the order of pushes and the window") {
  for (uint64_t seed = 1; seed <= 200; seed++) {
    INFO("seed " << seed);
    Random random(seed);
    const auto window = static_cast<uint32_t>(random.between(1, 5));
    const size_t pushes = random.between(1, 4), slices = random.between(1, 8);
    ManualDaemon daemon(window);
    std::vector<Sent> toTell;
    for (uint64_t step = 1; step <= pushes; step++) {
      daemon.begin(step, slices);
      for (size_t slice = 0; slice < slices; slice++) toTell.emplace_back(step, slice);
    }
    while (!toTell.empty() || !daemon.open.empty()) {
      if (!toTell.empty() && (daemon.open.empty() || random.oneIn(2))) {
        const auto chosen = toTell.begin() + static_cast<ptrdiff_t>(random.below(toTell.size()));
        daemon.ready(chosen->first, {chosen->second});
        toTell.erase(chosen);
      } else if (!daemon.open.empty()) {
        auto chosen =
            std::next(daemon.open.begin(), static_cast<ptrdiff_t>(random.below(daemon.open.size())));
        daemon.answer(Sent(chosen->first));
      }
    }
    REQUIRE(daemon.results.size() == pushes);
    REQUIRE(daemon.sent.size() == pushes * slices);
    REQUIRE(daemon.mostOpen <= window);
    REQUIRE(std::is_sorted(daemon.sent.begin(), daemon.sent.end(),
                           [](const Sent& a, const Sent& b) { return a.first < b.first; }));
  }
}

TEST_CASE("slices are complete when the last of their elements is reported") {
  for (uint64_t seed = 1; seed <= 100; seed++) {
    INFO("seed " << seed);
    Random random(seed);
    const auto plan =
        ShardPlan::make(16 * random.between(1, 40), static_cast<uint32_t>(random.between(1, 3)));
    const auto slices = cutIntoSlices(plan, 16 * random.between(1, 6));
    Coverage coverage(slices);
    std::vector<char> reported(plan.totalElements());
    std::vector<size_t> complete;
    // Ranges that end at random places, in random order.
    std::vector<uint64_t> cuts{0, plan.totalElements()};
    for (int i = 0; i < 6; i++) cuts.push_back(random.below(plan.totalElements()));
    std::sort(cuts.begin(), cuts.end());
    std::vector<size_t> order(cuts.size() - 1);
    std::iota(order.begin(), order.end(), 0);
    while (!order.empty()) {
      const auto chosen = order.begin() + static_cast<ptrdiff_t>(random.below(order.size()));
      const uint64_t begin = cuts[*chosen], end = cuts[*chosen + 1];
      order.erase(chosen);
      std::fill(reported.begin() + static_cast<ptrdiff_t>(begin),
                reported.begin() + static_cast<ptrdiff_t>(end), 1);
      for (size_t index : coverage.add(begin, end - begin)) complete.push_back(index);
      std::vector<size_t> expected;
      for (size_t i = 0; i < slices.size(); i++) {
        const auto first = reported.begin() + static_cast<ptrdiff_t>(slices[i].arena);
        if (std::all_of(first, first + static_cast<ptrdiff_t>(slices[i].count), [](char is) { return is; })) {
          expected.push_back(i);
        }
      }
      auto sorted = complete;
      std::sort(sorted.begin(), sorted.end());
      REQUIRE(sorted == expected);
    }
    REQUIRE(coverage.missing() == 0);
  }
}

}  // namespace
}  // namespace psd::client_push_queue_test

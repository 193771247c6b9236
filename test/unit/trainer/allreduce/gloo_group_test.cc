#include "trainer/allreduce/gloo_group.h"

#include <array>
#include <numeric>
#include <thread>

#include "test/support/catch.h"
#include "trainer/loop/averaged_steps.h"

namespace psd::gloo_group_test {
namespace {

using std::chrono::milliseconds;

/// The members of a group, each with its factory, in one process.
struct Members {
  explicit Members(size_t count) {
    for (size_t i = 0; i < count; i++) {
      auto maker = makeGlooGroups("");
      REQUIRE(maker.ok());
      makers.push_back(*std::move(maker));
      auto where = makers.back()->where();
      REQUIRE(where.ok());
      group.members.push_back(*where);
    }
  }

  /// Every member of a group creates it and runs `work` in it, on its own thread.
  template <class Work>
  void run(uint64_t generation, milliseconds timeout, Work work) {
    std::vector<std::jthread> threads;
    for (uint32_t i = 0; i < makers.size(); i++) {
      threads.emplace_back([&, i] {
        FormedGroup mine = group;
        mine.generation = generation;
        mine.index = i;
        auto made = makers[i]->make(mine, timeout);
        work(i, made.ok() ? made->get() : nullptr);
      });
    }
  }

  std::vector<std::unique_ptr<CollectiveMaker>> makers;
  FormedGroup group;
};

}  // namespace

TEST_CASE("gloo: three members have the same sum, and what the first one broadcasts") {
  Members members(3);
  for (const uint64_t generation : {5, 6}) {
    std::array<std::vector<float>, 3> values;
    std::array<std::array<uint64_t, 2>, 3> words{};
    std::array<bool, 3> works{};
    members.run(generation, milliseconds(30'000), [&](uint32_t i, Collective* group) {
      if (group == nullptr) return;
      values[i].resize(1000);
      std::iota(values[i].begin(), values[i].end(), static_cast<float>(i));
      words[i] = {100 + i, 200 + i};
      works[i] = group->sum(cutIntoBuckets(values[i], 1024)).ok() && group->broadcastFromFirst(words[i]).ok();
    });
    for (size_t i = 0; i < 3; i++) {
      REQUIRE(works[i]);
      CHECK(words[i] == std::array<uint64_t, 2>{100, 200});
      for (size_t k = 0; k < values[i].size(); k++) REQUIRE(values[i][k] == static_cast<float>(3 * k + 3));
    }
  }
}

TEST_CASE("gloo: a group without one of its members fails within its timeout, and names the member") {
  Members members(2);
  members.makers.pop_back();
  members.group.index = 0;
  members.group.generation = 1;
  auto made = members.makers.front()->make(members.group, milliseconds(300));
  REQUIRE_FALSE(made.ok());
  CHECK(made.error().code == ErrorCode::unavailable);
  CHECK(made.message().find("a group of 2 trainers at 127.0.0.1:") == 0);
}

TEST_CASE("gloo: a host that is not this machine is rejected") {
  const auto made = makeGlooGroups("192.0.2.1");
  REQUIRE_FALSE(made.ok());
  CHECK(made.error().code == ErrorCode::invalidArgument);
  CHECK(made.message().find("192.0.2.1") != std::string::npos);
}

TEST_CASE("buckets hold a gradient, in order and none too large") {
  std::vector<float> gradient(10);
  const auto buckets = cutIntoBuckets(gradient, 4 * sizeof(float));
  REQUIRE(buckets.size() == 3);
  CHECK(buckets[0].data() == gradient.data());
  CHECK(buckets[2].size() == 2);
  CHECK(buckets[2].data() == gradient.data() + 8);
  CHECK(cutIntoBuckets(gradient, 1).size() == 10);
  CHECK(cutIntoBuckets({}, 4096).empty());
}

}  // namespace psd::gloo_group_test

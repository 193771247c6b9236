#include "server/store/pushed_ranges.h"

#include "test/support/catch.h"

namespace psd::pushed_ranges_test {
namespace {

constexpr uint64_t kLife = 77;

AppliedPush push(uint64_t step, uint64_t before = 0, uint64_t incarnation = kLife) {
  return {Rank{1}, incarnation, Step{step}, Version{step}, 0, before};
}

UpdateSource source(uint64_t step, uint64_t incarnation = kLife) {
  return {Rank{1}, 1, incarnation, Step{step}, {}, 0};
}

std::vector<std::pair<uint64_t, uint64_t>> placesOf(const std::vector<PushedRange>& ranges) {
  std::vector<std::pair<uint64_t, uint64_t>> places;
  for (const PushedRange& range : ranges) places.emplace_back(range.begin, range.count);
  return places;
}

using Places = std::vector<std::pair<uint64_t, uint64_t>>;

TEST_CASE("ranges with the same pushes are merged, whatever versions these made") {
  AppliedPush later = push(9, 1);
  later.version = Version{40};
  const PushedRanges pushed({{0, 16, {push(9, 1)}}, {16, 32, {later}}});
  CHECK_FALSE(pushed.divided());
  REQUIRE(pushed.ranges().size() == 1);
  CHECK(pushed.ranges()[0].count == 48);
  CHECK(pushed.ranges()[0].pushes.front().version == Version{40});
  CHECK(placesOf(pushed.lacking(source(9))) == Places{{0, 48}});  // a trainer knows which of its pushes were
                                                                  // answered
}

TEST_CASE("a push goes to the ranges that lack it, and once all have it they are one") {
  PushedRanges pushed({{0, 16, {push(9, 1)}}, {16, 16, {push(8)}}, {32, 16, {push(9, 1)}}});
  REQUIRE(pushed.divided());
  CHECK(placesOf(pushed.lacking(source(9))) == Places{{16, 16}});
  CHECK(placesOf(pushed.lacking(source(10))) == Places{{0, 48}});
  pushed.note(push(9));
  CHECK_FALSE(pushed.divided());
  CHECK(pushed.ranges()[0].pushes.front().before == 1);
}

TEST_CASE("a push that a range has dropped no longer applies to it") {
  // The second range has 10 and not 9: it was dropped there.
  const PushedRanges pushed({{0, 16, {push(8)}}, {16, 16, {push(10, 0b10)}}});
  CHECK(placesOf(pushed.lacking(source(9))) == Places{{0, 16}});
  CHECK(pushed.lacking(source(8)).empty());
}

TEST_CASE("pushes of several steps complete ranges one after the other") {
  PushedRanges pushed({{0, 16, {push(10, 0b11)}}, {16, 16, {push(8)}}, {32, 16, {}}});
  for (const uint64_t step : {8, 9, 10}) {
    for (const PushedRange& range : pushed.lacking(source(step))) CHECK(range.begin >= 16);
    pushed.note(push(step));
  }
  CHECK(pushed.lacking(source(10)).empty() == pushed.divided());
  pushed.note(push(11));
  // The only differences precede the first push that all have.
  for (const PushedRange& range : pushed.ranges()) CHECK(range.pushes.front().step == Step{11});
}

TEST_CASE("a trainer without an incarnation is not recognised") {
  const PushedRanges pushed({{0, 16, {push(9, 0, 0)}}, {16, 16, {push(8, 0, 0)}}});
  CHECK(placesOf(pushed.lacking(source(9, 0))) == Places{{0, 32}});
}

TEST_CASE("a process that another one has replaced in a range adds nothing there") {
  AppliedPush newer = push(1, 0, kLife + 1);
  newer.earlier = {kLife};
  const PushedRanges pushed({{0, 16, {newer}}, {16, 16, {push(8)}}});
  CHECK(placesOf(pushed.lacking(source(9))) == Places{{16, 16}});
  CHECK(placesOf(pushed.lacking(source(1, kLife + 1))) == Places{{16, 16}});
}

TEST_CASE("the pushes of one trainer process that each range has") {
  const PushedRanges pushed({{0, 16, {push(9)}}, {16, 16, {}}});
  const auto found = pushesOf(pushed, Rank{1}, kLife);
  REQUIRE(found.size() == 2);
  CHECK(found[0].step == Step{9});
  CHECK(found[1].step == Step{0});
}

}  // namespace
}  // namespace psd::pushed_ranges_test

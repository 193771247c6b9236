#include "server/membership/batch_sizes.h"

#include <cmath>
#include <limits>

#include "test/support/catch.h"
#include "test/support/random.h"

namespace psd::batch_sizes_test {
namespace {

constexpr uint32_t kNominal = 30, kMost = 8 * kNominal;
constexpr SessionId kOne{1}, kTwo{2}, kThree{3};

void report(BatchSizes& sizes, SessionId session, double sampleSeconds) {
  PSD_REQUIRE_OK(sizes.report(session, {kNominal, kMost, sampleSeconds}));
}

TEST_CASE("a trainer without a measurement gets the nominal size, and does not change the others'") {
  BatchSizes sizes;
  CHECK(sizes.sizeFor(kOne) == 0);
  CHECK(sizes.nominalOf(kOne) == 0);
  report(sizes, kOne, 0);
  CHECK(sizes.sizeFor(kOne) == kNominal);
  CHECK(sizes.nominalOf(kOne) == kNominal);
  report(sizes, kTwo, 0.001);
  CHECK(sizes.sizeFor(kOne) == kNominal);
  CHECK(sizes.sizeFor(kTwo) == kNominal);  // the only measured one
}

TEST_CASE("sizes are proportional to the speeds, and adapt as trainers join and leave") {
  BatchSizes sizes;
  report(sizes, kOne, 0.005);
  report(sizes, kTwo, 0.001);
  CHECK(sizes.sizeFor(kOne) == 10);  // of 60, 1 : 5
  CHECK(sizes.sizeFor(kTwo) == 50);
  report(sizes, kThree, 0.005);
  CHECK(sizes.sizeFor(kOne) == 13);  // of 90, 1 : 5 : 1
  CHECK(sizes.sizeFor(kTwo) == 64);
  CHECK(sizes.sizeFor(kThree) == 13);
  sizes.leave(kTwo);
  CHECK(sizes.sizeFor(kOne) == kNominal);
  CHECK(sizes.sizeFor(kTwo) == 0);
  report(sizes, kThree, 0.0025);  // it became faster
  CHECK(sizes.sizeFor(kOne) == 20);
  CHECK(sizes.sizeFor(kThree) == 40);
}

TEST_CASE("every trainer gets at least one sample and at most its limit, and the others take the rest") {
  BatchSizes sizes;
  report(sizes, kOne, 1);
  report(sizes, kTwo, 1e-6);
  CHECK(sizes.sizeFor(kOne) == 1);
  CHECK(sizes.sizeFor(kTwo) == 2 * kNominal);
  PSD_REQUIRE_OK(sizes.report(kTwo, {kNominal, 40, 1e-6}));
  CHECK(sizes.sizeFor(kTwo) == 40);
  CHECK(sizes.sizeFor(kOne) == 20);
  PSD_REQUIRE_OK(sizes.report(kOne, {kNominal, kNominal, 1}));
  PSD_REQUIRE_OK(sizes.report(kTwo, {kNominal, kNominal, 1e-6}));
  CHECK(sizes.sizeFor(kOne) == kNominal);
  CHECK(sizes.sizeFor(kTwo) == kNominal);
}

TEST_CASE("invalid reports are rejected and change nothing") {
  BatchSizes sizes;
  report(sizes, kOne, 0.001);
  for (const double seconds : {-1.0, -0.001, std::nan(""), std::numeric_limits<double>::infinity()}) {
    INFO(seconds);
    const Status refused = sizes.report(kOne, {kNominal, kMost, seconds});
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().code == ErrorCode::invalidArgument);
  }
  CHECK_FALSE(sizes.report(kTwo, {0, kMost, 0}).ok());
  CHECK_FALSE(sizes.report(kTwo, {kNominal, kNominal - 1, 0}).ok());
  CHECK(sizes.sizeFor(kTwo) == 0);
  const Status other = sizes.report(kTwo, {kNominal + 1, kMost, 0});
  CHECK(other.message() == "this trainer's nominal batch has 31 samples; those of the others have 30");
  PSD_REQUIRE_OK(sizes.report(kOne, {kNominal + 1, kMost, 0.001}));  // alone it is valid
}

TEST_CASE("for any reports, sizes keep their bounds and add up") {
  for (uint64_t seed = 1; seed <= 300; seed++) {
    INFO("seed " << seed);
    testing::Random random(seed);
    BatchSizes sizes;
    const uint64_t trainers = random.between(1, 40);
    for (uint64_t i = 1; i <= trainers; i++) {
      // From 1 : 1000 up to the range of a double.
      const uint64_t exponents = random.oneIn(8) ? 300 : 3;
      const double exponent = static_cast<double>(random.between(0, 2 * exponents)) - exponents;
      report(sizes, SessionId{i}, random.oneIn(10) ? 0 : std::pow(10.0, exponent));
    }
    uint64_t all = 0;
    for (uint64_t i = 1; i <= trainers; i++) {
      const uint32_t size = sizes.sizeFor(SessionId{i});
      REQUIRE(size >= 1);
      REQUIRE(size <= kMost);
      all += size;
    }
    // Rounding errs by half a sample each, and a trainer too slow for one sample gets one all the same.
    CHECK(all + trainers / 2 >= trainers * kNominal);
    CHECK(all <= trainers * kNominal + trainers);
  }
}

}  // namespace
}  // namespace psd::batch_sizes_test

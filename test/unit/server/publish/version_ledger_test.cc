#include "server/publish/version_ledger.h"

#include "test/support/catch.h"

namespace psd::version_ledger_test {
namespace {

using std::chrono::seconds;

VersionLedger::Time at(int64_t second) { return VersionLedger::Time(seconds(second)); }

uint64_t publish(VersionLedger& ledger, uint64_t bytes, VersionLedger::Time now = at(0)) {
  const auto surplus = ledger.surplus(bytes, now);
  const auto number = ledger.begin(bytes, now);
  PSD_REQUIRE_OK(number);
  for (const uint64_t each : surplus) ledger.removed(each);
  ledger.commit(*number, bytes);
  for (const uint64_t each : ledger.surplus(0, now)) ledger.removed(each);
  return *number;
}

std::string refusal(const Result<VersionLedger::Lease>& lease) {
  REQUIRE_FALSE(lease.ok());
  return lease.message();
}

TEST_CASE("Version ledger: keeps the newest, and leased ones besides") {
  VersionLedger ledger({.keep = 2, .bytes = 1000, .leases = 4});
  CHECK(ledger.newest() == 0);
  CHECK(publish(ledger, 10) == 1);
  PSD_REQUIRE_OK(ledger.lease(7, 1, seconds(60), "r", at(0)));
  for (uint64_t number = 2; number <= 5; number++) CHECK(publish(ledger, 10) == number);
  CHECK(ledger.numbers() == std::vector<uint64_t>{1, 4, 5});
  CHECK(ledger.bytes() == 30);
  ledger.expire(at(60));
  CHECK(ledger.surplus(0, at(60)) == std::vector<uint64_t>{1});
}

TEST_CASE("Version ledger: a number is not used again, whatever happens to its version") {
  VersionLedger ledger({.keep = 1, .bytes = 100, .leases = 1});
  REQUIRE(ledger.begin(10, at(0)).ok());  // whose write fails
  CHECK(publish(ledger, 10) == 2);
  ledger.reserveNumber(9);  // a damaged file has it
  CHECK(publish(ledger, 10) == 10);
}

TEST_CASE("Version ledger: the limit admits three versions, or none is published") {
  VersionLedger ledger({.keep = 9, .bytes = 30, .leases = 1});
  const auto large = ledger.begin(11, at(0));
  REQUIRE_FALSE(large.ok());
  CHECK(large.error().code == ErrorCode::overloaded);
  CHECK(large.message() ==
        "a version takes 11 B, and limits.version_bytes (30 B) must admit three: raise it");
  for (uint64_t number = 1; number <= 5; number++) publish(ledger, 10);
  CHECK(ledger.numbers() == std::vector<uint64_t>{3, 4, 5});
}

TEST_CASE("Version ledger: leases leave room for two versions") {
  VersionLedger ledger({.keep = 9, .bytes = 39, .leases = 9});
  for (int i = 0; i < 4; i++) publish(ledger, 10);
  PSD_REQUIRE_OK(ledger.lease(1, 2, seconds(60), "a", at(0)));
  PSD_REQUIRE_OK(ledger.lease(2, 2, seconds(60), "b", at(0)));  // the same version takes no more room
  ledger.release(1);
  PSD_REQUIRE_OK(ledger.lease(2, 3, seconds(60), "b", at(0)));  // moves
  CHECK(ledger.leases().size() == 1);
  const auto third = ledger.lease(3, 4, seconds(60), "c", at(0));
  CHECK(
      refusal(third) ==
      "with this one, leased versions and room for two more exceed limits.version_bytes (39 B): raise it, or "
      "wait for leases to expire (psd versions)");
  for (int i = 0; i < 9; i++) publish(ledger, 10);
  CHECK(ledger.numbers().front() == 3);
}

TEST_CASE("Version ledger: why a lease is refused") {
  VersionLedger ledger({.keep = 2, .bytes = 1000, .leases = 1});
  CHECK(refusal(ledger.lease(1, 1, seconds(9), "r", at(0))) == "no version is published yet");
  for (int i = 0; i < 4; i++) publish(ledger, 10);
  CHECK(refusal(ledger.lease(1, 1, seconds(9), "r", at(0))) ==
        "version 1 was removed; the oldest is 3 and the newest 4");
  CHECK(refusal(ledger.lease(1, 5, seconds(9), "r", at(0))) ==
        "version 5 does not exist yet; the newest is 4");
  CHECK(refusal(ledger.lease(1, 4, seconds(0), "r", at(0))) == "a lease lasts 1 to 600 seconds, not 0");
  CHECK(refusal(ledger.lease(1, 4, seconds(601), "r", at(0))) == "a lease lasts 1 to 600 seconds, not 601");
  CHECK(refusal(ledger.lease(0, 4, seconds(9), "r", at(0))) == "the id of a lease must not be 0");
  PSD_REQUIRE_OK(ledger.lease(1, 4, seconds(9), "r", at(0)));
  CHECK(refusal(ledger.lease(2, 4, seconds(9), "r", at(0))) ==
        "all leases that limits.version_leases (1) allows are taken");
  PSD_REQUIRE_OK(ledger.lease(1, 3, seconds(9), "r", at(5)));   // it may renew and move its own
  PSD_REQUIRE_OK(ledger.lease(2, 4, seconds(9), "r", at(14)));  // the first has ended
}

TEST_CASE("Version ledger: versions that a previous daemon's readers lease are held until then") {
  VersionLedger ledger({.keep = 1, .bytes = 1000, .leases = 9});
  ledger.restore(3, 10, VersionLedger::Time::min());
  ledger.restore(4, 10, at(100));
  ledger.restore(7, 10, VersionLedger::Time::min());
  CHECK(ledger.surplus(0, at(0)) == std::vector<uint64_t>{3});
  CHECK(ledger.leasedUntil() == std::map<uint64_t, VersionLedger::Time>{{4, at(100)}});
  CHECK(publish(ledger, 10) == 8);
  CHECK(ledger.numbers() == std::vector<uint64_t>{4, 8});
  ledger.expire(at(100));
  CHECK(ledger.surplus(0, at(100)) == std::vector<uint64_t>{4});
}

}  // namespace
}  // namespace psd::version_ledger_test

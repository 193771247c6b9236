#include "server/daemon/upkeep.h"

#include "test/support/catch.h"
#include "test/support/event_loop.h"
#include "test/support/temp_dir.h"

namespace psd::upkeep_test {
namespace {

using testing::TempDir;
using testing::TestLoop;

TEST_CASE(
    "disks and descriptors are measured at the start and every interval, and the daily check runs once a "
    "day") {
  TestLoop loop;
  kj::TimerImpl timer(kj::origin<kj::TimePoint>());
  const TempDir folder;
  const std::string later = folder.file("later");
  int checks = 0;
  Upkeep upkeep(timer, {folder.path(), later}, [&] { checks++; });
  REQUIRE(upkeep.disks().size() == 1);
  CHECK(upkeep.disks()[0].path == folder.path());
  CHECK(upkeep.disks()[0].freeBytes > 0);
  CHECK(upkeep.disks()[0].sizeBytes >= upkeep.disks()[0].freeBytes);
  CHECK(upkeep.openDescriptors() > 2);

  PSD_REQUIRE_OK(makePosixEnv()->createFolder(later));
  timer.advanceTo(timer.now() + Upkeep::kInterval);
  CHECK(loop.until([&] { return upkeep.disks().size() == 2; }));
  CHECK(checks == 0);
  for (int day = 1; day <= 2; day++) {
    timer.advanceTo(timer.now() + Upkeep::kDailyInterval);
    CHECK(loop.until([&] { return checks == day; }));
  }
}

}  // namespace
}  // namespace psd::upkeep_test

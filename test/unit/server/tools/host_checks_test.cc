#include "server/tools/host_checks.h"

#include "test/support/catch.h"

namespace psd::host_checks_test {

using Catch::Matchers::Contains;

TEST_CASE("The doctor's advice about a full disk fits what is written there") {
  const DiskRoom full{1 << 20, 1ull << 40}, empty{1ull << 40, 1ull << 40};
  const Finding durability = checkRoom("durability.path", full, DiskKey::durability);
  CHECK(durability.outcome == Finding::Outcome::warn);
  CHECK_THAT(durability.text,
             Contains("1.0 MiB free of 1.0 TiB; free space there, or lower durability.keep"));
  const Finding save = checkRoom("save", full, DiskKey::save);
  CHECK(save.outcome == Finding::Outcome::warn);
  CHECK_THAT(save.text, Contains("free space there, or name a file on another disk in `save`"));
  CHECK(checkRoom("save", empty, DiskKey::save).outcome == Finding::Outcome::ok);
}

}  // namespace psd::host_checks_test

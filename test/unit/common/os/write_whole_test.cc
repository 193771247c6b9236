#include "common/os/write_whole.h"

#include <cerrno>
#include <string>

#include <fcntl.h>

#include "common/os/socket.h"
#include "test/support/catch.h"

namespace psd::write_whole_test {

TEST_CASE("a write to a full disk fails with its reason") {
  const OwnFd full(open("/dev/full", O_WRONLY | O_CLOEXEC));
  REQUIRE(full.get() >= 0);
  errno = 0;
  CHECK_FALSE(writeWhole(full.get(), "text"));
  CHECK(errno == ENOSPC);
}

}  // namespace psd::write_whole_test

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "test/support/catch.h"
#include "trainer/client/api/client.h"

namespace psd::client_connect_test {

#ifndef PSD_SANITIZE_ADDRESS
// UndefinedBehaviorSanitizer opens pipes to inspect objects, and reports them as invalid where it cannot.
TEST_CASE("a client that gets no descriptors says so") {
  const int next = open("/dev/null", O_RDONLY | O_CLOEXEC);
  REQUIRE(next >= 0);
  close(next);
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  for (const int more : {0, 1}) {
    INFO(more << " descriptors");
    const rlimit none{static_cast<rlim_t>(next + more), before.rlim_max};
    REQUIRE(setrlimit(RLIMIT_NOFILE, &none) == 0);
    ClientOptions options;
    options.servers = {"unix:///nowhere"};
    options.connectTimeout = std::chrono::milliseconds(1);
    const auto client = Client::connect(options);
    REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
    REQUIRE_FALSE(client.ok());
    CHECK(client.error().code == ErrorCode::overloaded);
    CHECK(client.message().find("no thread for input and output") == 0);
  }
}
#endif

}  // namespace psd::client_connect_test

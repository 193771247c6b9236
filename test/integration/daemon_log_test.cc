// The log of a real daemon about peers that exceed limits.

#include <string>
#include <vector>

#include "test/integration/daemon_process.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"
#include "trainer/client/api/client.h"

namespace psd::daemon_log_test {
namespace {

using testing::DaemonProcess;
using testing::TempDir;

TEST_CASE("a join with an endless name is one short line, and answered with another") {
  const TempDir folder;
  DaemonProcess daemon(folder);
  daemon.start({});
  const std::string name(2 << 20, 'n');
  // A model name, a tensor name that is too long, and one that occurs twice: every quoted name is cut.
  const std::vector<ModelSpec> models = {{name, {{name, DType::f32, {16}}}},
                                         {"m", {{name, DType::f32, {16}}, {name, DType::f32, {16}}}}};
  const std::vector<float> values(32);
  for (const ModelSpec& model : models) {
    ClientOptions options;
    options.servers = {daemon.address()};
    auto client = Client::connect(options);
    PSD_REQUIRE_OK(client);
    const auto joined = (*client)->join({Rank{0}, 1}, model, [&] { return std::span<const float>(values); });
    REQUIRE_FALSE(joined.ok());
    CHECK(joined.error().code == ErrorCode::invalidArgument);
    CHECK_THAT(joined.message(), Catch::Contains("2097152 bytes"));
    CHECK(joined.message().size() < 600);
  }
  std::string lines = daemon.errors();
  for (int i = 0; i < 2; i++) lines.erase(0, lines.find('\n') + 1);  // ready; saves nothing
  CHECK(std::count(lines.begin(), lines.end(), '\n') == 2);
  CHECK(lines.size() < 2000);
}

}  // namespace
}  // namespace psd::daemon_log_test

#include "server/client/version_client.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <vector>

#include "test/support/catch.h"
#include "test/support/fake_versions.h"
#include "test/support/version_files.h"

namespace psd::version_client_test {
namespace {

using namespace testing;
using std::chrono::seconds;
using Served = FakeVersions::Served;

TEST_CASE("a version is awaited while a move delays its lease, as long as the daemon answers") {
  FakeVersions daemon;
  const auto file = versionFile(3, {{"a", "F32", std::vector<std::byte>(400, std::byte{5})}});
  const auto header = verifyVersion(file);
  PSD_REQUIRE_OK(header);
  daemon.change([&](Served& served) {
    served.add(header->info, file);
    served.leasesWait = [&served] { return served.pings < 6; };  // three of each client, 5 s apart
  });
  const auto address = parseAddress(daemon.address());
  PSD_REQUIRE_OK(address);
  const auto isFile = [&file](const PulledVersion& version) {
    return std::ranges::equal(version.bytes, file) ? Status() : Status(ErrorCode::io, "other bytes");
  };
  auto pull = std::async(std::launch::async, [&] {
    return pullVersion(*address, 0, seconds(5), {}, isFile, 0, Patience::endless);
  });
  VersionInfo known;
  PatchBase base;
  FollowTerms terms;
  terms.timeout = seconds(5);
  terms.take = [&](const PulledVersion& version) -> Result<bool> {
    PSD_RETURN_IF_ERROR(isFile(version));
    return false;
  };
  const Status followed = followVersions(*address, {}, known, base, terms);
  const Status pulled = pull.get();
  PSD_REQUIRE_OK(followed);
  PSD_REQUIRE_OK(pulled);
  CHECK(daemon.change([](Served& served) { return served.leases.empty(); }));
}

}  // namespace
}  // namespace psd::version_client_test

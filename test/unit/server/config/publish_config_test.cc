#include <string>

#include "common/config/json_file.h"
#include "server/config/daemon_config.h"
#include "test/support/catch.h"

namespace psd::config_publish_test {
namespace {

Result<LoadedConfig> read(const std::string& text) { return readDaemonConfig(*parseJson(text, "test")); }

}  // namespace

TEST_CASE("a store of versions has no keys of training") {
  const auto loaded = read(R"({"publish": {"from": "publishers", "path": "versions"}})");
  PSD_REQUIRE_OK(loaded);
  CHECK(loaded->config.servesOnlyVersions());
  CHECK(loaded->config.publish->path == "versions");
  for (const char* key : {"policy", "optimizer", "groups", "durability", "device", "shards", "codecs"}) {
    CHECK_FALSE(loaded->effective.contains(key));
  }
  const auto again = readDaemonConfig(loaded->effective);
  PSD_REQUIRE_OK(again);
  CHECK(again->effective == loaded->effective);
  CHECK_FALSE(read(R"({"publish": {}})")->config.servesOnlyVersions());
}

TEST_CASE("a replica follows daemons by their addresses") {
  const auto loaded = read(
      R"({"publish": {"from": "upstream", "upstream": ["tcp://a:1", "unix:///b"], "token_file": "t", "keep": 2}})");
  PSD_REQUIRE_OK(loaded);
  CHECK(loaded->config.servesOnlyVersions());
  const PublishConfig& publish = *loaded->config.publish;
  REQUIRE(publish.upstream.size() == 2);
  CHECK(publish.upstream[1].toString() == "unix:///b");
  CHECK(publish.credentials.tokenFile == "t");
  const auto again = readDaemonConfig(loaded->effective);
  PSD_REQUIRE_OK(again);
  CHECK(again->effective == loaded->effective);
}

}  // namespace psd::config_publish_test

#include "server/config/default_keys.h"

#include "server/config/daemon_config.h"
#include "test/support/catch.h"

namespace psd::default_keys_test {
namespace {

using Keys = std::vector<std::string>;

Keys keysOf(const char* document) {
  const auto read = readDaemonConfig(nlohmann::ordered_json::parse(document));
  PSD_REQUIRE_OK(read.status());
  return keysOffDefault(read->effective);
}

TEST_CASE("only keys that differ from their default are listed") {
  CHECK(keysOf("{}").empty());
  CHECK(keysOf(R"({"shards": 3, "membership": {"lease_ms": 10000}})") == Keys{"shards"});
  CHECK(keysOf(R"({"membership": {"lease_ms": 12345}})") == Keys{"membership.lease_ms"});
}

TEST_CASE("the options of another type have that type's defaults") {
  const Keys keys =
      keysOf(R"({"policy": {"type": "diloco", "period": 7}, "optimizer": {"type": "sgd", "lr": 0.7}})");
  CHECK(std::ranges::find(keys, "policy.type") != keys.end());
  CHECK(std::ranges::find(keys, "policy.period") != keys.end());
  CHECK(std::ranges::find(keys, "policy.quorum") == keys.end());
}

}  // namespace
}  // namespace psd::default_keys_test

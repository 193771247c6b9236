#include <algorithm>
#include <string>
#include <vector>

#include "server/config/daemon_config.h"
#include "test/support/catch.h"

namespace psd::off_default_test {
namespace {

using Keys = std::vector<std::string>;

using Json = nlohmann::ordered_json;

Keys keysOf(Json document) {
  const auto read = readDaemonConfig(std::move(document));
  PSD_REQUIRE_OK(read.status());
  // The effective configuration is as far from the defaults as the document that it was made of.
  const auto again = readDaemonConfig(read->effective);
  PSD_REQUIRE_OK(again.status());
  CHECK(again->offDefault == read->offDefault);
  return read->offDefault;
}

Keys keysOf(const char* document) { return keysOf(Json::parse(document)); }

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

TEST_CASE("a key that is required or has another default is listed, whatever its value") {
  CHECK(keysOf(R"({"world_size": 1})") == Keys{"world_size"});
  CHECK(keysOf(R"({"auth": {"certificates": {"node-*": "reader"}}})") == Keys{"auth.certificates.node-*"});
  CHECK(keysOf(R"({"durability": {"type": "log", "path": "saved", "every_bytes": 0}})") ==
        Keys{"durability.type", "durability.path", "durability.every_bytes"});
  CHECK(keysOf(R"({"durability": {"type": "log", "path": "saved", "every_bytes": "auto"}})") ==
        Keys{"durability.type", "durability.path"});
}

TEST_CASE("a list is one key, however long it is") {
  Json model{{"tensors", Json::array()}};
  for (int i = 0; i < 5000; i++)
    model["tensors"].push_back({{"name", "w" + std::to_string(i)}, {"shape", {2}}});
  CHECK(keysOf(Json{{"model", model}}) == Keys{"model.tensors"});
}

}  // namespace
}  // namespace psd::off_default_test

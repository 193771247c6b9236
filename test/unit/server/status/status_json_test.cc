#include "server/status/status_json.h"

#include "common/config/json_file.h"
#include "test/support/catch.h"
#include "test/support/sample_status.h"

namespace psd::status_json_test {
namespace {

using Json = nlohmann::ordered_json;
using testing::sampleStatus;

TEST_CASE("a status survives the round trip through JSON") {
  for (const DaemonStatus& status : {sampleStatus(), DaemonStatus()}) {
    const Json document = statusJson(status);
    const auto parsed = parseJson(jsonText(document), "text");
    PSD_REQUIRE_OK(parsed);
    const auto back = readStatus(*parsed, "the status");
    PSD_REQUIRE_OK(back);
    CHECK(statusJson(*back) == document);
  }
}

TEST_CASE("the document has fields by name, and null for absent values") {
  const Json document = statusJson(sampleStatus());
  CHECK(document["uptime_seconds"] == 3723.5);
  CHECK(document["in_flight_bytes"] == 1 << 20);
  CHECK(document["shards"][1]["version"] == 189);
  CHECK(document["waiting"][0]["for"][0]["waited_seconds"] == 3.2);
  CHECK(document["durability"]["last_checkpoint"]["written_bytes"] == 4'799'528);
  CHECK(document["counters"]["updates"] == 758);
  CHECK(document["gauges"]["connections_open"] == 3);
  CHECK(document["trainers"][0]["staleness_histogram"]["buckets"][1] == Json{{"at_most", 1.}, {"count", 40}});
  const Json& staleness = document["histograms"]["staleness"];
  CHECK(staleness["count"] == 100);
  CHECK(staleness["sum"] == 98 + 2 * 17);
  CHECK(staleness["buckets"][1] == Json{{"at_most", 1.}, {"count", 98}});
  CHECK(staleness["buckets"].back()["at_most"].is_null());
  const Json empty = statusJson(DaemonStatus());
  CHECK(empty["model"].is_null());
  CHECK(empty["samples"].is_null());
  CHECK(empty["durability"]["log"].is_null());
  CHECK(empty["trainers"] == Json::array());
}

TEST_CASE("unknown fields are skipped") {
  Json document = statusJson(sampleStatus());
  document["later"] = {1, 2};
  document["trainers"][0]["mood"] = "good";
  PSD_REQUIRE_OK(readStatus(document, "the status"));
}

void checkRefused(const Json& document, const std::string& problem) {
  const auto refused = readStatus(document, "the status of tcp://h:1");
  REQUIRE_FALSE(refused.ok());
  INFO(refused.error().message);
  CHECK(refused.error().message.starts_with("the status of tcp://h:1: " + problem));
  CHECK(refused.error().message.find('\n') == std::string::npos);
}

/// Checks that `document` is read without any one field below `at`, and rejected with any one of another
/// type.
size_t checkEachBelow(const Json& document, const Json::json_pointer& at, const std::string& path) {
  size_t checked = 0;
  const Json& here = document[at];
  if (!here.is_structured()) return 0;
  for (const auto& [key, value] : here.items()) {
    const auto place = at / (here.is_array() ? std::to_string(std::stoul(key)) : key);
    const std::string name = here.is_array() ? path + "[" + key + "]" : path.empty() ? key : path + "." + key;
    if (!here.is_array()) {
      Json without = document;
      without[at].erase(key);
      if (name != "version") PSD_REQUIRE_OK(readStatus(without, "the status"));
    }
    Json other = document;
    other[place] = value.is_object() ? Json(7) : Json::object();
    if (!value.is_null()) checkRefused(other, name + " must be ");
    checked += 1 + checkEachBelow(document, place, name);
  }
  return checked;
}

TEST_CASE("a field of another type is rejected in a line that names it, and a missing one has its default") {
  Json document = statusJson(sampleStatus());
  for (auto& [name, histogram] : document["histograms"].items()) {
    histogram["buckets"] = {histogram["buckets"].front(), histogram["buckets"].back()};  // others are alike
  }
  CHECK(checkEachBelow(document, Json::json_pointer(), "") > 120);
}

TEST_CASE("a document that is not a status is rejected, and so are numbers out of range") {
  checkRefused(7, "it must be an object, not 7; is the daemon another version of psd?");
  checkRefused(nullptr, "it must be an object, not null");
  checkRefused(Json::object(), "version is missing");
  Json document = statusJson(sampleStatus());
  for (const Json& odd : {Json(-1), Json(4294967296), Json(1.5), Json("1"), Json(true), Json()}) {
    Json wrong = document;
    wrong["shards"][1]["id"] = odd;
    checkRefused(wrong, "shards[1].id must be an integer from 0 to 4294967295, not " + odd.dump());
  }
  document["host"] = std::string(1, '\xff') + "\n" + std::string(5000, 'x');
  PSD_REQUIRE_OK(readStatus(document, "the status"));
  document["state"] = {{"a", 1}};
  checkRefused(document, "state must be a string, not an object");
}

}  // namespace
}  // namespace psd::status_json_test

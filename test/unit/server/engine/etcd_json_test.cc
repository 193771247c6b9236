#include "server/engine/etcd_json.h"

#include "test/support/catch.h"

namespace psd::etcd_json_test {
namespace {

// As etcd 3.4.23 writes them; L2s= is "/k", YmFy is "bar".
const std::string kHeader = R"("header":{"cluster_id":"324952591200643719","revision":"9","raft_term":"2"})";
const std::string kEntry =
    R"({"key":"L2s=","create_revision":"2","mod_revision":"7","version":"1","value":"YmFy"})";

TEST_CASE("requests have etcd's format: base64, and numbers as texts") {
  CHECK(etcd::rangeRequest("/k") == R"({"key":"L2s="})");
  CHECK(
      etcd::swapRequest("/k", 18446744073709551615u, "bar") ==
      R"({"compare":[{"key":"L2s=","target":"MOD","result":"EQUAL","mod_revision":"18446744073709551615"}],)"
      R"("success":[{"requestPut":{"key":"L2s=","value":"YmFy"}}],"failure":[{"requestRange":{"key":"L2s="}}]})");
  CHECK(etcd::watchRequest("/k", 3) == R"({"create_request":{"key":"L2s=","start_revision":"3"}})");
  CHECK(etcd::loginRequest("a\"b", "\n") == R"({"name":"a\"b","password":"\n"})");
}

TEST_CASE("the value of a key") {
  const auto there = etcd::readRange("{" + kHeader + ",\"kvs\":[" + kEntry + "],\"count\":\"1\"}", "/k");
  PSD_REQUIRE_OK(there);
  CHECK(there->stored == Stored{"bar", 7});
  CHECK(there->asOf == 9);
  const auto none = etcd::readRange("{" + kHeader + "}", "/k");
  PSD_REQUIRE_OK(none);
  CHECK(none->stored == Stored{});
  const auto empty = etcd::readRange("{" + kHeader + R"(,"kvs":[{"key":"L2s=","mod_revision":"7"}]})", "/k");
  PSD_REQUIRE_OK(empty);
  CHECK(empty->stored == Stored{"", 7});
  CHECK_FALSE(etcd::readRange("{" + kHeader + ",\"kvs\":[" + kEntry + "]}", "/other").ok());
}

TEST_CASE("a swap that is rejected with its own text succeeded before") {
  const auto won =
      etcd::readSwap("{" + kHeader + R"(,"succeeded":true,"responses":[{"response_put":{}}]})", "/k", "x");
  PSD_REQUIRE_OK(won);
  CHECK(won->won);
  CHECK(won->now == Stored{"x", 9});
  const std::string refused = "{" + kHeader +
                              R"(,"responses":[{"response_range":{"header":{"revision":"9"},"kvs":[)" +
                              kEntry + "]}}]}";
  const auto lost = etcd::readSwap(refused, "/k", "x"), own = etcd::readSwap(refused, "/k", "bar");
  PSD_REQUIRE_OK(lost);
  CHECK_FALSE(lost->won);
  CHECK(lost->now == Stored{"bar", 7});
  PSD_REQUIRE_OK(own);
  CHECK(own->won);
  CHECK(own->now == Stored{"bar", 7});
  // A missing key has no text rather than an empty one.
  const std::string absent =
      "{" + kHeader + R"(,"responses":[{"response_range":{"header":{"revision":"9"}}}]})";
  const auto none = etcd::readSwap(absent, "/k", "");
  PSD_REQUIRE_OK(none);
  CHECK_FALSE(none->won);
  CHECK(none->now == Stored{});
}

TEST_CASE("lines of a watch") {
  const auto read = [](const std::string& result) {
    return etcd::readWatch("{\"result\":" + result + "}", "/k");
  };
  const auto created = read("{" + kHeader + ",\"created\":true}");
  PSD_REQUIRE_OK(created);
  CHECK_FALSE(created->changed);
  CHECK(created->compacted == 0);
  const auto changed = read("{" + kHeader + R"(,"events":[{"kv":{"key":"L2s=","mod_revision":"6"}},{"kv":)" +
                            kEntry + R"(},{"type":"DELETE","kv":{"key":"L2s=","mod_revision":"8"}}]})");
  PSD_REQUIRE_OK(changed);
  CHECK(changed->changed == Stored{"bar", 7});
  const auto compacted = read("{" + kHeader + R"(,"canceled":true,"compact_revision":"3"})");
  PSD_REQUIRE_OK(compacted);
  CHECK(compacted->compacted == 3);
  const auto forbidden = read(
      R"({"canceled":true,"cancel_reason":"rpc error: code = PermissionDenied desc = etcdserver: permission denied"})");
  REQUIRE_FALSE(forbidden.ok());
  CHECK(forbidden.error().code == ErrorCode::forbidden);
  const auto broken =
      etcd::readWatch(R"({"error":{"grpc_code":14,"message":"transport is\nclosing"}})", "/k");
  REQUIRE_FALSE(broken.ok());
  CHECK(broken.message() == "transport is?closing");
}

TEST_CASE("a token") {
  CHECK(etcd::readToken("{" + kHeader + R"(,"token":"WSdHTxFxOkMhLbhm.18"})").value() ==
        "WSdHTxFxOkMhLbhm.18");
}

TEST_CASE("etcd's error replies") {
  const auto refusal = [](unsigned status, int code, const std::string& message) {
    const std::string text = R"(","code":)" + std::to_string(code) + "}";
    return etcd::readRefusal(status, R"({"error":")" + message + R"(","message":")" + message + text);
  };
  CHECK(refusal(403, 7, "etcdserver: permission denied").error.code == ErrorCode::forbidden);
  const auto stale = refusal(401, 16, "etcdserver: invalid auth token");
  CHECK(stale.needsLogin);
  CHECK(refusal(400, 3, "etcdserver: revision of auth store is old").needsLogin);
  const auto wrong = refusal(400, 3, "etcdserver: authentication failed, invalid user ID or password");
  CHECK(wrong.error.code == ErrorCode::unauthenticated);
  CHECK_FALSE(wrong.needsLogin);
  CHECK(refusal(412, 9, "etcdserver: authentication is not enabled").authIsOff);
  CHECK_FALSE(refusal(404, 5, "etcdserver: requested lease not found").noSuchPath);
  const auto path = etcd::readRefusal(404, "404 page not found\n");
  CHECK(path.noSuchPath);
  CHECK(path.error.message == "404 page not found? (HTTP 404)");
  const auto leaderless = refusal(503, 14, "etcdserver: no leader");
  CHECK(leaderless.error.code == ErrorCode::unavailable);
  CHECK(leaderless.error.message == "etcdserver: no leader (HTTP 503)");
}

}  // namespace
}  // namespace psd::etcd_json_test

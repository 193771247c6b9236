#include "server/config/engine_config.h"

#include "common/config/json_file.h"
#include "server/config/live_change.h"
#include "test/support/catch.h"

namespace psd::engine_config_test {
namespace {

Result<LoadedConfig> read(const std::string& text) {
  auto parsed = parseJson(text, "test.json");
  PSD_REQUIRE_OK(parsed);
  return readDaemonConfig(*std::move(parsed));
}

TEST_CASE("without an engine there is none") {
  const auto loaded = read("{}");
  PSD_REQUIRE_OK(loaded);
  CHECK_FALSE(loaded->config.engine);
  CHECK_FALSE(loaded->effective.contains("engine"));
}

TEST_CASE("an engine with every key") {
  const auto loaded = read(
      R"({"policy": {"type": "locked"}, "engine": {"type": "etcd", "prefix": "/psd/mnist", "answer_ms": 100,
      "endpoints": ["https://etcd-0:4001", "https://[::1]", "http://127.0.0.1"], "user": "psd",
      "password_file": "p", "tls": {"ca": "ca.pem", "certificate": "c.pem", "key": "c.key"}}})");
  PSD_REQUIRE_OK(loaded);
  REQUIRE(loaded->config.engine);
  const EngineConfig& engine = *loaded->config.engine;
  CHECK(engine.prefix == "/psd/mnist");
  CHECK(engine.etcd.members ==
        std::vector<EtcdMember>{{"etcd-0", 4001, true}, {"::1", 2379, true}, {"127.0.0.1", 2379, false}});
  CHECK(engine.etcd.answerMs == 100);
  CHECK(engine.etcd.user == "psd");
  CHECK(engine.etcd.passwordFile == "p");
  CHECK(engine.etcd.tls.ca == "ca.pem");
  CHECK(engine.etcd.tls.certificate == "c.pem");
  CHECK(engine.etcd.tls.key == "c.key");
}

TEST_CASE("each wrong engine gets its one-line error") {
  const std::string form =
      "'/' and visible ASCII without '/' at the end, at most 200 bytes, as \"/psd/mnist\"";
  const auto wrongPrefix = [&](const std::string& given) {
    return "engine.prefix: must be " + form + ", not \"" + given + "\"";
  };
  const std::string both = R"("prefix": "/psd", "endpoints": ["http://10.0.0.1"])";
  const auto [keys, message] = GENERATE_COPY(table<std::string, std::string>({
      {R"("endpoints": ["http://a"])",
       "engine.prefix: is needed: what the keys of this model, and of no other, begin with: " + form},
      {R"("endpoints": ["http://a"], "prefix": "psd")", wrongPrefix("psd")},
      {R"("endpoints": ["http://a"], "prefix": "/")", wrongPrefix("/")},
      {R"("endpoints": ["http://a"], "prefix": "/psd/")", wrongPrefix("/psd/")},
      {R"("endpoints": ["http://a"], "prefix": "/a b")", wrongPrefix("/a b")},
      {R"("endpoints": ["http://a"], "prefix": "/)" + std::string(200, 'x') + "\"",
       wrongPrefix("/" + std::string(199, 'x') + "...")},
      {R"("prefix": "/psd")",
       "engine.endpoints: must hold 1 to 16 addresses of members of etcd, as \"http://10.0.0.1:2379\""},
      {R"("prefix": "/psd", "endpoints": ["http://a", "a:2379"])",
       "engine.endpoints[1]: 'a:2379' is not an etcd address; expected http://HOST:PORT or "
       "https://HOST:PORT"},
      {R"("prefix": "/psd", "endpoints": ["http://a", "http://a:2379"])",
       "engine.endpoints[1]: \"http://a:2379\" is listed twice"},
      {both + R"(, "type": "zookeeper")", "engine.type: must be \"etcd\", not \"zookeeper\""},
      {both + R"(, "endpoint": "x")", "engine.endpoint: unknown key; did you mean 'endpoints'?"},
      {both + R"(, "answer_ms": 49)", "engine.answer_ms: must be an integer from 50 to 10000, not 49"},
      {both + R"(, "user": "psd")", "engine.password_file: is needed: user and password_file go together"},
      {both + R"(, "password_file": "p")", "engine.user: is needed: user and password_file go together"},
      {both + R"(, "user": "psd", "password_file": "p")",
       "engine.user: the password would go to http://10.0.0.1:2379 in the clear: use https://, or set "
       "\"insecure\": true (--insecure) on a network that you trust"},
      {both + R"(, "tls": {"ca": "ca.pem"})",
       "engine.tls: requires endpoints https://, of which there is none"},
      {R"("prefix": "/psd", "endpoints": ["https://a"], "tls": {"key": "k"})",
       "engine.tls.certificate: is needed: certificate and key go together"},
      {R"("prefix": "/psd", "endpoints": ["https://a"], "tls": {"certificate": "c"})",
       "engine.tls.key: is needed: certificate and key go together"},
  }));
  const auto loaded = read("{\"engine\": {" + keys + "}}");
  REQUIRE_FALSE(loaded.ok());
  CHECK(loaded.message() == message);
}

TEST_CASE("a password may be sent unencrypted with an explicit opt-in, and to this machine") {
  const std::string user = R"("user": "psd", "password_file": "p")";
  PSD_REQUIRE_OK(read(
      R"({"insecure": true, "policy": {"type": "locked"}, "engine": {"prefix": "/psd", "endpoints": ["http://10.0.0.1"], )" +
      user + "}}"));
  PSD_REQUIRE_OK(read(
      R"({"policy": {"type": "locked"}, "engine": {"prefix": "/psd", "endpoints": ["http://localhost", "https://a"], )" +
      user + "}}"));
}

TEST_CASE("each wrong replication gets its one-line error") {
  const std::string engine = R"("engine": {"prefix": "/psd", "endpoints": ["http://localhost"]})";
  const std::string locked = R"("policy": {"type": "locked"}, )" + engine;
  const auto [keys, message] = GENERATE_COPY(table<std::string, std::string>({
      {R"("replication": {"wait": "none"})",
       "replication: requires `engine`: without one a daemon has no standby"},
      {locked + R"(, "replication": {"wait": "disk"})",
       "replication.wait: must be one of \"standby\", \"standby_and_disk\", \"none\", not \"disk\""},
      {locked + R"(, "replication": {"wait": "standby_and_disk"})",
       "replication.wait: \"standby_and_disk\" waits for the log on the disk, so it requires "
       "durability.type "
       "log, not none"},
      {locked + R"(, "replication": {"silence_ms": 100})",
       "replication.silence_ms: must be at least 4 times heartbeat_ms (50): a standby would take over for a "
       "delayed beat"},
      {locked + R"(, "replication": {"alone_ms": 400})",
       "replication.alone_ms: must be at least twice silence_ms (300): the standby gets the first try"},
      {locked + R"(, "replication": {"addresses": ["tcp://*:5500"]})",
       "replication.addresses[0]: \"tcp://*:5500\" cannot be dialled: it needs a host and a port"},
      {R"("policy": {"type": "locked", "clip": {"value": 1}}, )" + engine,
       "engine: a standby gets gradients as they were pushed, so it cannot be combined with policy.clip or "
       "policy.delay_compensation"},
  }));
  INFO(keys);
  const auto loaded = read("{" + keys + "}");
  REQUIRE_FALSE(loaded.ok());
  CHECK(loaded.message() == message);
}

TEST_CASE("the engine cannot change while the daemon runs") {
  const auto with = [](const std::string& prefix) {
    return read(R"({"policy": {"type": "locked"}, "engine": {"endpoints": ["http://a"], "prefix": ")" +
                prefix + "\"}}")
        .value();
  };
  CHECK(checkLiveChange(with("/psd"), with("/psd")).ok());
  const Status changed = checkLiveChange(with("/psd"), with("/other"));
  CHECK(changed.message() == "engine.prefix: cannot change while the daemon runs (\"/psd\" -> \"/other\")");
  CHECK_FALSE(checkLiveChange(with("/psd"), read("{}").value()).ok());
  CHECK_FALSE(checkLiveChange(read("{}").value(), with("/psd")).ok());
}

}  // namespace
}  // namespace psd::engine_config_test

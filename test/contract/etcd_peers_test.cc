// Faulty replies of an etcd member: none, garbage, or a version that is too old.

#include <functional>

#include "server/engine/etcd_json.h"
#include "test/contract/engine_rig.h"

namespace psd::etcd_peers_test {
namespace {

using testing::EngineLoop;

const std::string kKey = "/psd/test/plan";

/// Answers every request with the bytes that a function makes of its path; without one it stays silent. Owned
/// by one event loop.
class ScriptedPeer final : private kj::TaskSet::ErrorHandler {
 public:
  ScriptedPeer(EngineLoop& loop, std::function<std::string(const std::string& path)> script)
      : script_(std::move(script)), tasks_(*this) {
    auto address = loop.wait(loop.network().parseAddress("127.0.0.1", 0));
    receiver_ = address->listen();
    tasks_.add(accept());
  }
  EtcdMember member() { return {"127.0.0.1", static_cast<uint16_t>(receiver_->getPort()), false}; }

 private:
  struct Connection {
    kj::Own<kj::AsyncIoStream> stream;
    std::string read, answer;
    char buffer[4096];
  };
  kj::Promise<void> accept() {
    return receiver_->accept().then([this](kj::Own<kj::AsyncIoStream> stream) {
      auto connection = kj::heap<Connection>();
      connection->stream = kj::mv(stream);
      auto& one = *connection;
      tasks_.add(serve(one).attach(kj::mv(connection)));
      return accept();
    });
  }
  /// Requests are small, and arrive whole.
  kj::Promise<void> serve(Connection& connection) {
    return connection.stream->tryRead(connection.buffer, 1, sizeof connection.buffer)
        .then([this, &connection](size_t bytes) -> kj::Promise<void> {
          if (bytes == 0) return kj::READY_NOW;
          connection.read.append(connection.buffer, bytes);
          if (connection.read.find("\r\n\r\n") == std::string::npos) return serve(connection);
          const size_t path = connection.read.find(' ') + 1;
          connection.answer = script_(connection.read.substr(path, connection.read.find(' ', path) - path));
          connection.read.clear();
          if (connection.answer.empty()) return serve(connection);
          return connection.stream->write(connection.answer.data(), connection.answer.size())
              .then([this, &connection] {
                connection.stream->shutdownWrite();
                return serve(connection);
              });
        });
  }
  void taskFailed(kj::Exception&&) override {}

  const std::function<std::string(const std::string& path)> script_;
  kj::Own<kj::ConnectionReceiver> receiver_;
  kj::TaskSet tasks_;
};

std::string http(const std::string& body, const std::string& status = "200 OK") {
  return "HTTP/1.1 " + status +
         "\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
         body;
}

const std::string kEntry = R"({"key": "L3BzZC90ZXN0L3BsYW4=", "mod_revision": "7", "value": "YmFy"})";

/// Bytes that are not a valid answer to any call.
std::vector<std::string> garbage() {
  const std::string chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
  std::vector<std::string> all = {
      "\r\n\r\n",
      "SSH-2.0-OpenSSH_9.2\r\n",
      std::string(1000, '\0'),
      "HTTP/1.1 two hundred\r\n\r\n",
      "HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n{}",
      "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\n{}",
      "HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{\"header\": ",
      "HTTP/1.1 200 OK\r\nX: " + std::string(200'000, 'x') + "\r\n\r\n{}",
      "HTTP/1.1 204 No Content\r\n\r\n",
      chunked + "zz\r\n{}\r\n0\r\n\r\n",
      chunked + "ffffffffffffffffffffffff\r\n{}\r\n",
      chunked + "300000\r\n" + std::string(0x300000, ' ') + "\r\n0\r\n\r\n",
      http(std::string(3u << 20, '[')),
      http(""),
      http("no JSON\nat all"),
      http("[]"),
      http("{}"),
      http("{\"header\": 5}"),
      http(R"({"header": {"revision": "-1"}})"),
      http(R"({"header": {"revision": "99999999999999999999999"}})"),
      http(R"({"header": {"revision": {}}, "succeeded": true})"),
      http(R"({"header": {}, "succeeded": "yes"})"),
      http(R"({"header": {}, "succeeded": true})"),
      http(R"({"header": {"revision": "8"}, "kvs": {}, "responses": {}})"),
      http(R"({"header": {"revision": "8"}, "kvs": [5], "responses": [5]})"),
      http(R"({"header": {"revision": "8"}, "kvs": [{"key": "b3RoZXI=", "mod_revision": "7"}]})"),
      http(R"({"header": {"revision": "8"}, "kvs": [{"key": "!!!", "mod_revision": "7"}]})"),
      http(R"({"header": {"revision": "6"}, "kvs": [)" + kEntry + "]}"),
      http(R"({"header": {"revision": "8"}, "kvs": [)" + kEntry + "," + kEntry + "]}"),
      http(
          R"({"header": {"revision": "8"}, "responses": [{"response_range": {"header": {}, "kvs": [{}]}}]})"),
      http("{\"error\": \"\xff\xfe\", \"message\": 5, \"code\": []}", "500 Internal Server Error"),
      http("<html>\nproxy error</html>", "502 Bad Gateway"),
      http("", "401 Unauthorized"),
      http("moved", "301 Moved Permanently"),
  };
  return all;
}

TEST_CASE("garbage instead of an answer is an error on one line, for every call") {
  EngineLoop loop;
  for (const std::string& bytes : garbage()) {
    CAPTURE(bytes.substr(0, 200));
    ScriptedPeer peer(loop, [&bytes](const std::string&) { return bytes; });
    const auto engine = loop.etcd(EtcdOptions{.members = {peer.member()}, .pollMs = 1});
    const auto read = loop.wait(engine->read(kKey));
    const auto swapped = loop.wait(engine->swap(kKey, 5, "text"));
    // Some are valid for one of the two.
    CHECK_FALSE((read.ok() && swapped.ok()));
    CHECK((!swapped.ok() || !swapped->won));
    for (const Status& status : {read.status(), swapped.status()}) {
      if (status.ok()) continue;
      INFO(status.message());
      CHECK(status.message().starts_with("etcd: "));
      CHECK(status.message().find(peer.member().toString()) != std::string::npos);
      CHECK(status.message().find('\n') == std::string::npos);
      CHECK(status.message().size() < 1000);
    }
    auto changed = engine->changed(kKey, read.ok() ? read->revision : 7);
    CHECK_FALSE(loop.resolvedWithin(5, changed));
  }
}

TEST_CASE("a login that is answered with garbage is an error too") {
  EngineLoop loop;
  EtcdOptions options{.user = "joe", .answerMs = 250, .loginMs = 100};
  std::vector<std::string> all = garbage();
  for (const char* const token :
       {R"({"token": ""})", R"({"token": 5})", R"({"token": "a b"})", "{\"token\": \"a\\r\\nX: y\"}"}) {
    all.push_back(http(token));
  }
  all.push_back(http("{\"token\": \"" + std::string(5000, 'x') + "\"}"));
  for (const std::string& bytes : all) {
    CAPTURE(bytes.substr(0, 200));
    ScriptedPeer peer(loop, [&bytes](const std::string&) { return bytes; });
    options.members = {peer.member()};
    Etcd engine(loop.network(), loop.timer(), options, "secret");
    const auto read = loop.wait(engine.read(kKey));
    REQUIRE_FALSE(read.ok());
    CHECK(read.message().find('\n') == std::string::npos);
    CHECK(read.message().find("secret") == std::string::npos);
  }
}

TEST_CASE("garbage in a watch ends it, and the reads continue") {
  EngineLoop loop;
  const std::string range = http(R"({"header": {"revision": "8"}, "kvs": [)" + kEntry + "]}");
  for (const std::string& line : {std::string("garbage\n"), std::string("{}\n"),
                                  std::string("{\"result\": 5}\n"), std::string(3u << 20, 'x'),
                                  std::string(R"({"result": {"events": 5}})"
                                              "\n"),
                                  std::string(R"({"result": {"events": [{"kv": {}}]}})"
                                              "\n"),
                                  std::string(R"({"error": {"message": "a\nb"}})"
                                              "\n"),
                                  std::string(R"({"result": {"compact_revision": "4", "canceled": true}})"
                                              "\n")}) {
    CAPTURE(line.substr(0, 200));
    bool isLater = false;
    ScriptedPeer peer(loop, [&](const std::string& path) {
      if (path == "/v3/watch") return "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + line;
      if (!isLater) return range;
      return http(
          R"({"header": {"revision": "9"}, "kvs": [{"key": "L3BzZC90ZXN0L3BsYW4=", "mod_revision": "9"}]})");
    });
    const auto engine = loop.etcd(EtcdOptions{.members = {peer.member()}, .pollMs = 10});
    auto changed = engine->changed(kKey, 7);
    CHECK_FALSE(loop.resolvedWithin(30, changed));
    isLater = true;
    CHECK(loop.wait(kj::mv(changed)).value().revision == 9);
  }
}

TEST_CASE("one valid answer is enough, whatever the other members send") {
  EngineLoop loop;
  const std::string right = http(R"({"header": {"revision": "8"}, "kvs": [)" + kEntry + "]}");
  ScriptedPeer good(loop, [&](const std::string&) { return right; });
  ScriptedPeer silent(loop, [](const std::string&) { return std::string(); });
  ScriptedPeer forbidding(
      loop, [](const std::string&) { return http(R"({"code": 7, "message": "no"})", "403 Forbidden"); });
  ScriptedPeer babbling(loop, [](const std::string&) { return std::string("babble\r\n\r\n"); });
  const auto engine = loop.etcd({silent.member(), forbidding.member(), babbling.member(), good.member()});
  CHECK(loop.wait(engine->read(kKey)).value() == Stored{"bar", 7});
}

TEST_CASE("without a valid answer the error quotes every member") {
  EngineLoop loop;
  ScriptedPeer silent(loop, [](const std::string&) { return std::string(); });
  ScriptedPeer leaderless(loop, [](const std::string&) {
    return http(R"({"code": 14, "message": "etcdserver: no leader"})", "503 Service Unavailable");
  });
  const auto engine =
      loop.etcd(EtcdOptions{.members = {silent.member(), leaderless.member()}, .answerMs = 50});
  const auto swapped = loop.wait(engine->swap(kKey, 0, "text"));
  REQUIRE_FALSE(swapped.ok());
  CHECK(swapped.error().code == ErrorCode::unavailable);
  CHECK(swapped.message() == "etcd: no answer: " + leaderless.member().toString() +
                                 ": etcdserver: no leader (HTTP 503); " + silent.member().toString() +
                                 ": no answer within 50 ms");
}

TEST_CASE("an etcd that is too old is distinguished from a server that is not etcd") {
  EngineLoop loop;
  const auto missing = http("404 page not found\n", "404 Not Found");
  ScriptedPeer old(loop, [&](const std::string& path) {
    return path == "/v3beta/kv/range" ? http("{\"header\": {}}") : missing;
  });
  ScriptedPeer other(loop, [&](const std::string&) { return missing; });
  const auto ask = [&](ScriptedPeer& peer) {
    const auto read = loop.wait(loop.etcd({peer.member()})->read(kKey));
    REQUIRE_FALSE(read.ok());
    CHECK(read.error().code == ErrorCode::protocolMismatch);
    return read.message();
  };
  CHECK(ask(old) ==
        "etcd: " + old.member().toString() +
            ": this etcd is older than 3.4 (it answers at /v3beta/ only): psd needs etcd 3.4 or later");
  CHECK(ask(other) ==
        "etcd: " + other.member().toString() + ": no etcd answers at /v3/: 404 page not found? (HTTP 404)");
}

TEST_CASE("addresses of members") {
  CHECK(parseEtcdMember("http://10.0.0.1:2379").value() == EtcdMember{"10.0.0.1", 2379, false});
  CHECK(parseEtcdMember("https://etcd-0.etcd/").value() == EtcdMember{"etcd-0.etcd", 2379, true});
  CHECK(parseEtcdMember("http://[::1]:4001").value() == EtcdMember{"::1", 4001, false});
  CHECK(parseEtcdMember("http://[::1]").value().toString() == "http://[::1]:2379");
  for (const char* const text :
       {"", "10.0.0.1:2379", "tcp://a:1", "http://", "http://a:0", "http://a:b", "http://a:65536",
        "http://a/v3", "http://u@a", "http://a b", "http://a\r\nX: y", "https://*"}) {
    CAPTURE(text);
    const auto member = parseEtcdMember(text);
    REQUIRE_FALSE(member.ok());
    CHECK(member.message().find("expected http://HOST:PORT or https://HOST:PORT") != std::string::npos);
  }
}

}  // namespace
}  // namespace psd::etcd_peers_test

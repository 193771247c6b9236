#include "server/daemon/peer_book.h"

#include <atomic>
#include <functional>
#include <map>
#include <system_error>
#include <thread>

#include <pthread.h>

#include "common/config/json_file.h"
#include "server/status/status_json.h"
#include "server/tools/replica_sets_overview.h"
#include "test/support/catch.h"
#include "test/support/event_loop.h"

namespace psd::peer_book_test {
namespace {

using namespace testing;
using Peers = PeerBook::Peers;

Address at(const std::string& text) { return *parseAddress(text); }

DaemonStatus statusOf(uint32_t pid, const std::string& role = "", const std::string& daemon = "") {
  DaemonStatus status;
  status.pid = pid;
  status.state = "serving";
  status.residentBytes = 1000 * pid;
  if (!role.empty()) status.replicaSet = ReplicaSetStatus{.daemon = daemon, .role = role, .term = 3};
  return status;
}

/// Daemons that answer immediately, by address; thread-safe once constructed.
struct Daemons {
  std::map<std::string, DaemonStatus> there;
  std::atomic<bool> away{false};

  PeerBook::Ask ask() {
    return [this](const Address& address, const Credentials&) -> Result<std::string> {
      const auto found = there.find(address.toString());
      if (away || found == there.end()) return Error{ErrorCode::unavailable, "no process listens\nthere"};
      return jsonText(statusJson(found->second));
    };
  }
};

std::vector<DaemonRow> looked(TestLoop& loop, PeerBook& book, const std::vector<Peers>& peers) {
  loop.wait(book.whenRefreshed(peers));
  return book.rows(peers);
}

TEST_CASE("each daemon is one row, whatever its addresses, and one that is unreachable is shown as such") {
  TestLoop loop;
  Daemons daemons;
  daemons.there["tcp://b:1"] = statusOf(1);
  daemons.there["tcp://b:2"] = statusOf(1);
  PeerBook book(Credentials(), daemons.ask());
  const auto rows = looked(loop, book,
                           {{.partition = 2, .addresses = {at("tcp://c:1"), at("unix:///c")}},
                            {.partition = 1, .addresses = {at("tcp://b:1"), at("tcp://b:2")}}});
  REQUIRE(rows.size() == 2);
  CHECK(rows[0].partition == 1);
  CHECK(rows[0].answers);
  CHECK(rows[0].role == "primary");
  CHECK(rows[0].residentBytes == 1000);
  CHECK(rows[1].partition == 2);
  CHECK_FALSE(rows[1].answers);
  CHECK(rows[1].address == "tcp://c:1");
  CHECK(rows[1].why.find("no process listens") == 0);
  CHECK(rows[1].why.find('\n') == std::string::npos);
}

TEST_CASE("both daemons of a replica set are rows, the primary first, and this daemon is none") {
  TestLoop loop;
  Daemons daemons;
  daemons.there["tcp://a:1"] = statusOf(1, "standby", "07");
  daemons.there["tcp://a:2"] = statusOf(2, "primary", "08");
  daemons.there["tcp://a:3"] = statusOf(2, "primary", "08");
  PeerBook book(Credentials(), daemons.ask());
  const std::vector<Address> addresses{at("tcp://a:1"), at("tcp://a:2"), at("tcp://a:3")};
  const bool own = GENERATE(false, true);
  const auto rows = looked(
      loop, book, {{.partition = 0, .addresses = addresses, .ownReplicaSet = own, .here = own ? "07" : ""}});
  REQUIRE(rows.size() == (own ? 1 : 2));
  CHECK(rows[0].role == "primary");
  CHECK(rows[0].term == 3);
}

TEST_CASE("a daemon's last report stays when it becomes unreachable") {
  TestLoop loop;
  Daemons daemons;
  daemons.there["tcp://b:1"] = statusOf(4, "primary", "07");
  PeerBook book(Credentials(), daemons.ask());
  const std::vector<Peers> peers{{.partition = 1, .addresses = {at("tcp://b:1")}}};
  CHECK(looked(loop, book, peers).at(0).answers);
  daemons.away = true;
  CHECK(loop.until([&] { return !book.rows(peers).at(0).answers; }));
  const DaemonRow row = book.rows(peers).at(0);
  CHECK(row.role == "primary");
  CHECK(row.silentSeconds > 0);
}

TEST_CASE("until the first answer rows are shown as unknown") {
  TestLoop loop;
  std::atomic<bool> asked{false}, answer{false};
  PeerBook book(Credentials(), [&](const Address&, const Credentials&) -> Result<std::string> {
    asked = true;
    while (!answer) std::this_thread::yield();
    return Error{ErrorCode::unavailable, "gone"};
  });
  const std::vector<Peers> peers{{.partition = 1, .addresses = {at("tcp://b:1")}}};
  auto looked = book.whenRefreshed(peers);
  CHECK(loop.until([&] { return asked.load(); }));
  CHECK_FALSE(loop.resolved(looked));
  const auto rows = book.rows(peers);
  answer = true;
  REQUIRE(rows.size() == 1);
  CHECK_FALSE(rows[0].polled);
  CHECK(rows[0].why == "query in progress");
  loop.wait(kj::mv(looked));
  CHECK(book.rows(peers).at(0).why == "gone");
}

TEST_CASE("an occasional caller causes one refresh, and none again for some seconds") {
  TestLoop loop;
  std::atomic<int> asked{0};
  PeerBook book(Credentials(), [&](const Address&, const Credentials&) -> Result<std::string> {
    asked++;
    return jsonText(statusJson(statusOf(1)));
  });
  const std::vector<Peers> peers{{.partition = 1, .addresses = {at("tcp://b:1")}}};
  loop.wait(book.whenRefreshedOnce(peers));
  CHECK(book.seen().at(0).answers);
  auto again = book.whenRefreshedOnce(peers);
  CHECK(loop.resolved(again));
  CHECK(asked == 1);
}

TEST_CASE("a daemon that did not answer is not waited for, and shown as unreachable until it answers") {
  TestLoop loop;
  std::atomic<bool> blocks{false}, here{false};
  std::atomic<int> lives{0};
  PeerBook book(Credentials(), [&](const Address& address, const Credentials&) -> Result<std::string> {
    if (address == at("tcp://b:1")) {
      lives++;
      return jsonText(statusJson(statusOf(1, "primary", "07")));
    }
    while (blocks) std::this_thread::yield();
    if (here) return jsonText(statusJson(statusOf(2, "standby", "08")));
    return Error{ErrorCode::unavailable, "gone"};
  });
  const std::vector<Peers> peers{{.partition = 1, .addresses = {at("tcp://a:1"), at("tcp://b:1")}}};
  loop.wait(book.whenRefreshed(peers));  // others refresh, again and again
  blocks = true;
  const int before = lives;
  CHECK(loop.until([&] { return lives > before; }));  // though the unreachable one is first
  const auto rows = book.seen();
  REQUIRE(rows.size() == 2);
  CHECK(rows[0].answers);
  CHECK_FALSE(rows[1].answers);
  auto seen = book.whenRefreshedOnce(peers);
  CHECK(loop.resolved(seen));
  here = true;
  blocks = false;
  CHECK(loop.until([&] { return book.rows(peers).at(1).answers; }));
}

/// While it lives the system has no memory for another thread's stack, and so no thread.
class NoMoreThreads {
 public:
  NoMoreThreads() {
    pthread_getattr_default_np(&before_);
    pthread_attr_t none = before_;
    pthread_attr_setstacksize(&none, size_t{1} << 50);
    pthread_setattr_default_np(&none);
  }
  ~NoMoreThreads() {
    pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&before_);
  }

 private:
  pthread_attr_t before_{};
};

TEST_CASE("if the system has no more threads one of them queries all daemons") {
  TestLoop loop;
  Daemons daemons;
  PeerBook book(Credentials(), daemons.ask());
  std::vector<Peers> peers;
  for (uint32_t i = 0; i < 3; i++) {
    const std::string address = "tcp://daemon-" + std::to_string(i) + ":1";
    daemons.there[address] = statusOf(i + 1);
    peers.push_back({.partition = i, .addresses = {at(address)}});
  }
  const NoMoreThreads limited;
  CHECK_THROWS_AS(std::thread([] {}), std::system_error);
  const auto rows = looked(loop, book, peers);
  REQUIRE(rows.size() == 3);
  for (const DaemonRow& row : rows) CHECK(row.answers);
}

TEST_CASE("a token is not sent where others could read it") {
  TestLoop loop;
  Daemons daemons;
  daemons.there["tcp://elsewhere:1"] = statusOf(1);
  daemons.there["tcp://localhost:1"] = statusOf(2);
  PeerBook book(Credentials{.token = "secret", .tls = {}}, daemons.ask());
  const auto rows = looked(loop, book,
                           {{.partition = 0, .addresses = {at("tcp://elsewhere:1")}},
                            {.partition = 1, .addresses = {at("tcp://localhost:1")}}});
  CHECK(rows.at(0).why.find("not queried: the token would be sent there unencrypted") == 0);
  CHECK_FALSE(rows.at(0).polled);
  CHECK(rows.at(1).answers);
}

TEST_CASE("a token is sent unencrypted to hosts that were named, and to no other listed one") {
  TestLoop loop;
  Daemons daemons;
  daemons.there["tcp://named:2"] = statusOf(1);
  daemons.there["tcp://listed:1"] = statusOf(2);
  daemons.there["tcp://over-tls:1"] = statusOf(3);
  const auto clear = clearHostsOf({"tcp://named:1", "tls://over-tls:1", "unix:///run/psd"});
  PeerBook book(Credentials{.token = "secret", .tls = {}}, daemons.ask(), clear);
  const auto rows = looked(loop, book,
                           {{.partition = 0, .addresses = {at("tcp://named:2")}},
                            {.partition = 1, .addresses = {at("tcp://listed:1")}},
                            {.partition = 2, .addresses = {at("tcp://over-tls:1")}}});
  CHECK(rows.at(0).answers);
  for (const size_t other : {1, 2}) {
    CHECK_FALSE(rows.at(other).polled);
    CHECK(rows.at(other).why.find("not queried: the token would be sent there unencrypted") == 0);
  }
}

TEST_CASE("an invalid status is the daemon's fault") {
  TestLoop loop;
  PeerBook book(Credentials(),
                [](const Address&, const Credentials&) { return std::string("{\"pid\": \"x\"}"); });
  const auto rows = looked(loop, book, {{.partition = 0, .addresses = {at("tcp://b:1")}}});
  CHECK_FALSE(rows.at(0).answers);
  CHECK(rows.at(0).why.find("its status") == 0);
}

TEST_CASE("the linked page is one that is reachable where the daemon is") {
  const Address here = at("tcp://127.0.0.1:5500"), there = at("tls://node-2:5500"),
                six = at("tcp://[fd00::2]:5500");
  CHECK(pageFor({"http://localhost:5580/"}, here) == "http://localhost:5580/");
  CHECK(pageFor({"http://localhost:5580/"}, there).empty());
  CHECK(pageFor({"http://localhost:5580/", "https://*:5581/"}, there) == "https://node-2:5581/");
  CHECK(pageFor({"http://0.0.0.0:5581/"}, there) == "http://node-2:5581/");
  CHECK(pageFor({"http://[::]:5581/"}, there) == "http://node-2:5581/");
  CHECK(pageFor({"https://*:5581/"}, six) == "https://[fd00::2]:5581/");
  CHECK(pageFor({"https://node-2:5581/"}, here) == "https://node-2:5581/");
  CHECK(pageFor({"unix:///run/http", "javascript:alert(1)"}, here).empty());
}

TEST_CASE("a daemon finds the address by which others know it, whatever it listens on") {
  const std::vector<Address> any{at("tcp://*:5500")}, named{at("tcp://node-1:5500")}, none;
  const std::vector<Address> pair{at("tcp://10.0.0.1:5500"), at("tcp://10.0.0.2:5501")};
  const auto found = [](const std::vector<Address>& listed, const std::vector<Address>& reached,
                        const std::vector<Address>* others) {
    return addressForOthers(listed, reached, others).toString();
  };
  CHECK(found({at("tcp://node-1:5500"), at("unix:///run/psd")}, any, nullptr) == "tcp://node-1:5500");
  CHECK(found(none, named, &none) == "tcp://node-1:5500");
  CHECK(found({at("tcp://node-0:5500"), at("tcp://node-1:5500")}, named, &none) == "tcp://node-1:5500");
  CHECK(found(pair, {at("tcp://node-2:5501")}, &none) == "tcp://10.0.0.2:5501");  // by its port
  const std::vector<Address> same{at("tcp://10.0.0.1:5500"), at("tcp://10.0.0.2:5500")};
  const std::vector<Address> other{at("tcp://10.0.0.2:5500")};
  CHECK(found(same, named, &other) == "tcp://10.0.0.1:5500");
  CHECK(found(same, named, &none) == "tcp://node-1:5500");  // which of the two it is cannot be decided
}

TEST_CASE("a row has the gradients per second that the daemon reports, and none once it is unreachable") {
  TestLoop loop;
  Daemons daemons;
  daemons.there["tcp://b:1"] = statusOf(1);
  daemons.there["tcp://b:1"].gradientsPerSecond = 2.5;
  PeerBook book(Credentials(), daemons.ask());
  const std::vector<Peers> peers{{.partition = 1, .addresses = {at("tcp://b:1")}}};
  CHECK(looked(loop, book, peers).at(0).gradientsPerSecond == 2.5);
  daemons.away = true;
  CHECK(loop.until([&] { return !book.rows(peers).at(0).answers; }));
  CHECK(book.rows(peers).at(0).gradientsPerSecond == 0);
}

}  // namespace
}  // namespace psd::peer_book_test

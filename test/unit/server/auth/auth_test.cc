#include <chrono>
#include <future>

#include <sys/stat.h>
#include <unistd.h>

#include "server/auth/authenticator.h"
#include "server/config/daemon_config.h"
#include "server/rpc/caller.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

namespace psd::auth_test {
namespace {

const std::string kHash(64, 'a');

struct Folder {
  testing::TempDir dir;
  std::string path = dir.file("tokens");

  void hold(const std::string& text, mode_t mode = 0600) const {
    testing::writeFile(path, text);
    REQUIRE(chmod(path.c_str(), mode) == 0);
  }
};

std::string lineOf(const std::string& name, const std::string& role, const std::string& token) {
  return name + " " + role + " sha256:" + hexOf(Hasher::make()->sha256(token).value()) + "\n";
}

std::shared_ptr<const AuthRules> rulesOf(const AuthConfig& config) {
  auto rules = AuthRules::read(config);
  PSD_REQUIRE_OK(rules);
  return *rules;
}

}  // namespace

TEST_CASE("Auth: SHA-256 is that of the standard") {
  const auto hasher = Hasher::make();
  PSD_REQUIRE_OK(hasher);
  const auto digest = hasher->sha256("abc");
  PSD_REQUIRE_OK(digest);
  CHECK(hexOf(*digest) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(hasher->same(*digest, sha256Of(hexOf(*digest)).value()));
  CHECK_FALSE(hasher->same(*digest, hasher->sha256("abd").value()));
  CHECK_FALSE(sha256Of("abc").ok());
  CHECK_FALSE(sha256Of(std::string(63, 'a') + "g").ok());
  CHECK_FALSE(sha256Of("+1" + std::string(62, 'a')).ok());
}

TEST_CASE("Auth: a token file holds names, roles and hashes, comments and empty lines") {
  const Folder folder;
  folder.hold("# those who train\n\n  pool-a\ttrainer sha256:" + kHash + "\r\nops admin sha256:" +
              std::string(64, 'B') + "\npool-a trainer sha256:" + std::string(64, 'c'));
  const auto tokens = readTokenFile(folder.path);
  PSD_REQUIRE_OK(tokens);
  REQUIRE(tokens->size() == 3);
  CHECK(tokens->at(0).line() == "pool-a trainer sha256:" + kHash);
  CHECK(tokens->at(1).role == Role::admin);
  CHECK(hexOf(tokens->at(1).digest) == std::string(64, 'b'));
}

TEST_CASE("Auth: roles include reader, and admin all") {
  using enum Role;
  for (const Role role : {reader, publisher, trainer, admin}) {
    CHECK(includes(role, reader));
    CHECK(includes(admin, role));
    CHECK(includes(role, role));
    CHECK(includes(role, admin) == (role == admin));
  }
  CHECK_FALSE(includes(trainer, publisher));
  CHECK_FALSE(includes(publisher, trainer));
}

TEST_CASE("Auth: bad lines of a token file are named, and never quote what may be a token") {
  const auto [text, words] = GENERATE_REF(table<std::string, std::string>({
      {"pool trainer\n",
       "line 1: expected NAME ROLE sha256:HEX [expires=TIME], three or four words and not 2"},
      {"\npool trainr sha256:" + kHash,
       "line 2: 'trainr' is not a role; expected reader, publisher, trainer, admin; did you mean"},
      {"po/ol trainer sha256:" + kHash, "line 1: 'po/ol' is not a name"},
      {"pool trainer md5:" + kHash, "line 1: the third word is sha256:HEX"},
      {"pool trainer sha256:abc", "line 1: a SHA-256 has 64 hexadecimal digits"},
      {"pool trainer sha256:" + kHash + " 30d", "line 1: the fourth word is expires=TIME"},
      {"pool trainer sha256:" + kHash + " expires=2026-12-31", "line 1: the fourth word is expires=TIME"},
      {"pool trainer sha256:" + kHash + " expires=2026-02-30T00:00:00Z",
       "line 1: the fourth word is expires=TIME"},
      {"pool trainer sha256:" + kHash + " expires=2026-1-01T00:00:00Z",
       "line 1: the fourth word is expires=TIME"},
      {"pool trainer sha256:" + kHash + "\npool admin sha256:" + kHash,
       "line 2: 'pool' has role trainer in an earlier line"},
  }));
  const Folder folder;
  folder.hold(text);
  const auto tokens = readTokenFile(folder.path);
  REQUIRE_FALSE(tokens.ok());
  INFO(tokens.message());
  CHECK(tokens.error().code == ErrorCode::invalidArgument);
  CHECK(tokens.message().find(folder.path + ", " + words) == 0);
  CHECK(tokens.message().find("md5:") == std::string::npos);
}

TEST_CASE("Auth: a token file must be readable by its owner only") {
  const Folder folder;
  for (const mode_t mode : {0640, 0620, 0604, 0602, 0660}) {
    folder.hold("pool trainer sha256:" + kHash, mode);
    const auto tokens = readTokenFile(folder.path);
    REQUIRE_FALSE(tokens.ok());
    CHECK(tokens.message().find("chmod 600") != std::string::npos);
  }
  folder.hold("pool trainer sha256:" + kHash, 0400);
  PSD_REQUIRE_OK(readTokenFile(folder.path));
  CHECK_FALSE(readTokenFile(folder.dir.file("none")).ok());
  CHECK_FALSE(readTokenFile(folder.dir.path()).ok());
}

TEST_CASE("Auth: a token decides alone, and without one the certificate and user do") {
  const Folder folder;
  folder.hold(lineOf("pool", "trainer", "secret") + lineOf("eve", "reader", "other"));
  Authenticator who;
  CHECK(who.logIn("any", {"10.0.0.1:1", {}, {"ops"}})->identity.name == "ops");  // also without rules
  who.adopt(rulesOf({folder.path, {{"node-*.lab", Role::trainer}, {"*", Role::reader}}, Role::admin}));
  const Peer self{"here", geteuid(), {}}, stranger{"here", geteuid() + 1, {}}, far{"10.0.0.1:1", {}, {}};
  const auto roleOf = [&](const std::string& token, const Peer& peer) {
    const auto access = who.logIn(token, peer);
    return access.ok() ? std::string(roleName(access->identity.role)) : "none";
  };
  CHECK(roleOf("", self) == "admin");
  CHECK(roleOf("secret", self) == "trainer");
  CHECK(roleOf("wrong", self) == "none");
  CHECK(roleOf("", stranger) == "none");
  CHECK(roleOf("secret", stranger) == "trainer");
  CHECK(roleOf("", far) == "none");
  CHECK(roleOf("other", far) == "reader");
  CHECK(roleOf(std::string(100'000, 'x'), far) == "none");
  CHECK(roleOf("", {"10.0.0.1:1", {}, {"trainer of lab", "node-7.lab"}}) == "trainer");
  CHECK(roleOf("", {"10.0.0.1:1", {}, {"somebody"}}) == "reader");
  CHECK(who.byToken("secret")->name == "pool");
  CHECK(who.byToken("secrets").error().code == ErrorCode::unauthenticated);
}

TEST_CASE("Auth: access is lost with a token, a role or a rule, and with nothing else") {
  const Folder folder;
  folder.hold(lineOf("pool", "trainer", "secret") + lineOf("eve", "reader", "other"));
  const AuthConfig config{folder.path, {{"ops", Role::admin}}, Role::admin};
  Authenticator who;
  who.adopt(rulesOf(config));
  const Peer far{"10.0.0.1:1", {}, {}}, ops{"10.0.0.2:1", {}, {"ops"}};
  Access pool = who.logIn("secret", far).value(), byName = who.logIn("", ops).value();
  const auto afterwards = [&](const std::string& text, const std::string& change) {
    folder.hold(text);
    CHECK(who.adopt(rulesOf(config)) == change);
    return who.stillHolds(pool, far);
  };
  PSD_REQUIRE_OK(afterwards(lineOf("pool", "trainer", "secret"), "token 'eve': reader -> none"));
  PSD_REQUIRE_OK(afterwards(lineOf("pool", "admin", "secret"), "token 'pool': trainer -> admin"));
  CHECK(afterwards(lineOf("pool", "reader", "secret"), "token 'pool': admin -> reader").error().code ==
        ErrorCode::forbidden);
  CHECK(afterwards(lineOf("pool", "reader", "another"), "tokens replaced").error().code ==
        ErrorCode::unauthenticated);
  CHECK(afterwards("", "token 'pool': reader -> none").error().code == ErrorCode::unauthenticated);
  PSD_REQUIRE_OK(who.stillHolds(byName, ops));
  who.adopt(rulesOf({folder.path, {}, Role::admin}));
  CHECK(who.stillHolds(byName, ops).error().code == ErrorCode::unauthenticated);
}

TEST_CASE("Auth: a token that expires") {
  const Folder folder;
  const auto until = [](const std::string& time) {
    std::string line = lineOf("pool", "trainer", "secret");
    line.pop_back();
    return line + " expires=" + time + "\n";
  };
  const AuthConfig config{folder.path, {}, Role::admin};
  const Peer far{"10.0.0.1:1", {}, {}};
  Authenticator who;
  folder.hold(until("2200-01-01T00:00:00Z"));
  who.adopt(rulesOf(config));
  Access pool = who.logIn("secret", far).value();
  CHECK(pool.expires.has_value());
  PSD_REQUIRE_OK(who.stillHolds(pool, far));
  folder.hold(until("2020-01-01T00:00:00Z"));
  CHECK(who.adopt(rulesOf(config)) == "tokens replaced");
  const std::string why = "the token of 'pool' expired at 2020-01-01T00:00:00Z";
  CHECK(who.stillHolds(pool, far).message() == why);
  CHECK(who.logIn("secret", far).message() == why);
  CHECK(who.byToken("secret").error().code == ErrorCode::unauthenticated);
}

TEST_CASE("Auth: removing tokens leaves the other lines as they are") {
  const Folder folder;
  const std::string before = "# ours\n\n", after = lineOf("eve", "reader", "c") + "  # end";
  folder.hold(before + lineOf("pool", "trainer", "a") + lineOf("pool", "trainer", "b") + after);
  CHECK(*removeTokens(folder.path, "pool") == 2);
  CHECK(testing::readFile(folder.path) == before + after);
  CHECK(*removeTokens(folder.path, "pool") == 0);
  CHECK_FALSE(removeTokens(folder.dir.file("none"), "pool").ok());
  PSD_REQUIRE_OK(readTokenFile(folder.path));  // its mode is still that of a file with secrets
}

TEST_CASE("Auth: of tokens that are added and removed at once none is lost, and none comes back") {
  const Folder folder;
  folder.hold("");
  constexpr int kEach = 50;
  const auto add = [&](const std::string& name) {
    for (int i = 0; i < kEach; i++)
      if (!addToken(folder.path, {.name = name}).ok()) return false;
    return true;
  };
  auto first = std::async(std::launch::async, add, "first");
  auto other = std::async(std::launch::async, add, "other");
  size_t removed = 0;
  const auto remove = [&] { removed += removeTokens(folder.path, "other").value(); };
  while (other.wait_for(std::chrono::seconds(0)) != std::future_status::ready) remove();
  CHECK(first.get());
  CHECK(other.get());
  remove();
  CHECK(removed == kEach);
  const auto kept = readTokenFile(folder.path);
  PSD_REQUIRE_OK(kept);
  CHECK(kept->size() == kEach);
}

TEST_CASE("Auth: replies to failed logins are delayed, up to a limit on their number") {
  Authenticator who;
  std::vector<std::shared_ptr<const void>> held;
  for (size_t i = 0; i < Authenticator::kDelayedRepliesMax; i++) held.push_back(who.delayReply());
  CHECK(held.back() != nullptr);
  CHECK(who.delayReply() == nullptr);
  held.pop_back();
  CHECK(who.delayReply() != nullptr);
}

TEST_CASE("Auth: generated tokens differ") {
  const auto one = generateToken(), other = generateToken();
  PSD_REQUIRE_OK(one);
  PSD_REQUIRE_OK(other);
  CHECK(one->size() == 68);
  CHECK(*one != *other);
}

TEST_CASE("Auth: an address that other machines reach requires tokens, certificates or an explicit opt-in") {
  using Json = nlohmann::ordered_json;
  const Json tls{{"certificate", "c"}, {"key", "k"}, {"client_ca", "ca"}};
  Json strict = tls;
  strict["require_client"] = true;
  const auto loads = [](Json config) { return readDaemonConfig(std::move(config)).status(); };
  for (const char* local :
       {"tcp://localhost", "tcp://127.0.0.1:1", "tcp://127.8.0.1:1", "tcp://[::1]:1", "unix:///x"}) {
    INFO(local);
    PSD_REQUIRE_OK(loads({{"listen", {local}}}));
  }
  for (const char* open :
       {"tcp://*:1", "tcp://0.0.0.0:1", "tcp://[::]:1", "tcp://10.1.2.3:1", "tcp://node-1:1"}) {
    INFO(open);
    const Status refused = loads({{"listen", {"unix:///x", open}}});
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().code == ErrorCode::invalidArgument);
    CHECK(refused.message().find(std::string("listen[1]: ") + open + " can be reached from other machines") ==
          0);
    PSD_REQUIRE_OK(loads({{"listen", {open}}, {"insecure", true}}));
    PSD_REQUIRE_OK(loads({{"listen", {open}}, {"auth", {{"tokens", "t"}}}}));
    CHECK_FALSE(loads({{"listen", {open}}, {"tls", strict}}).ok());  // which does not cover tcp://
  }
  CHECK_FALSE(loads({{"listen", {"tls://*:1"}}, {"tls", tls}}).ok());
  PSD_REQUIRE_OK(loads({{"listen", {"tls://*:1"}}, {"tls", strict}}));
  CHECK(loads({{"listen", {"tls://localhost:1"}}}).message().find("tls:// needs `tls`") != std::string::npos);
  CHECK(loads({{"tls", {{"certificate", "c"}, {"key", "k"}, {"require_client", true}}}})
            .message()
            .find("client_ca") != std::string::npos);
  CHECK(loads({{"auth", {{"certificates", {{"*", "root"}}}}}}).message().find("auth.certificates") == 0);
  for (const char* glob : {"trainer-[0-9", "ops\\"}) {
    const std::string message = loads({{"auth", {{"certificates", {{glob, "trainer"}}}}}}).message();
    INFO(message);
    CHECK(message.find("auth.certificates") == 0);
    CHECK(message.find(glob[0] == 't' ? "lacks the ']'" : "ends with a '\\'") != std::string::npos);
  }
}

TEST_CASE("Auth: the time for a login begins again with the answer to one that failed") {
  kj::EventLoop loop;
  const kj::WaitScope scope(loop);
  Authenticator authenticator;
  authenticator.adopt(rulesOf(AuthConfig()));
  const auto at = [](int ms) { return kj::origin<kj::TimePoint>() + ms * kj::MILLISECONDS; };
  constexpr std::chrono::milliseconds kTimeout{100};
  Caller caller({.where = "10.0.0.7:4711"}, authenticator, at(0));
  CHECK_FALSE(caller.logIn("unknown", "psd-trainer").ok());
  CHECK_FALSE(caller.failedTooOften(at(550)));
  for (const int ms : {100, 549, 649}) CHECK_FALSE(caller.mustEnd(at(ms), kTimeout));
  CHECK(caller.mustEnd(at(650), kTimeout) == "it did not log in within limits.login_timeout_ms (100)");
}

}  // namespace psd::auth_test

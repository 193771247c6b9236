// Authorization by tokens and roles, as seen on the wire and in the client library.

#include <algorithm>
#include <deque>

#include <sys/stat.h>

#include "common/crypto/sha256.h"
#include "common/types/model_layout.h"
#include "common/wire/login.h"
#include "server/auth/authenticator.h"
#include "server/client/admin_client.h"
#include "server/client/move_outcome_client.h"
#include "test/integration/protocol_server.h"
#include "test/support/raw_peer.h"
#include "trainer/client/api/client.h"

namespace psd::auth_test {
namespace {

using testing::Json;
using testing::LocalServer;
using testing::RawPeer;
using Answer = capnp::Response<schema::LoginResult>;

constexpr std::chrono::seconds kPatience{60};
const ModelSpec kModel{"line", {{"w", DType::f32, {32}}}};

/// A token file in a folder of its own. Owned by one thread.
class TokenFile {
 public:
  /// One line for each "name role"; the token is the name followed by "-secret".
  void hold(const std::vector<std::pair<std::string, std::string>>& lines) {
    std::string text = "# who may do what\n\n";
    for (const auto& [name, role] : lines) {
      text += name + " " + role + " sha256:" + hexOf(Hasher::make()->sha256(name + "-secret").value()) + "\n";
    }
    testing::writeFile(path(), text);
    REQUIRE(chmod(path().c_str(), S_IRUSR | S_IWUSR) == 0);
  }
  std::string path() const { return folder_.file("tokens"); }

 private:
  testing::TempDir folder_;
};

Json asking(const TokenFile& tokens) {
  Json settings = testing::config();
  settings["auth"] = {{"tokens", tokens.path()}};
  return settings;
}

kj::Promise<Answer> logIn(RawPeer& peer, const std::string& token) {
  auto request = peer.login().loginRequest();
  wire::writeLogin("a test", token, request);
  return request.send().dropPipeline();
}

std::unique_ptr<Client> clientOf(const LocalServer& server, const std::string& token,
                                 std::chrono::seconds retry) {
  ClientOptions options;
  options.servers = {server.address()};
  options.token = token;
  options.retryTimeout = retry;
  auto client = Client::connect(options);
  PSD_REQUIRE_OK(client);
  return std::move(*client);
}

void checkFailed(const Status& status, ErrorCode code, const std::string& words) {
  REQUIRE_FALSE(status.ok());
  INFO(status.message());
  CHECK(status.error().code == code);
  CHECK(status.message().find(words) != std::string::npos);
}

}  // namespace

TEST_CASE("Auth: a role gives its capabilities and no more") {
  TokenFile tokens;
  tokens.hold({{"eve", "reader"}, {"pool", "trainer"}, {"ops", "admin"}});
  LocalServer server(asking(tokens));
  auto io = kj::setupAsyncIo();
  for (const auto& [name, trains, administers] :
       {std::tuple("eve", false, false), std::tuple("pool", true, false), std::tuple("ops", true, true)}) {
    RawPeer peer(io, server.address());
    const Answer answer = peer.wait(logIn(peer, std::string(name) + "-secret"));
    INFO(name);
    REQUIRE(answer.getStatus().isOk());
    CHECK(answer.getCaller() == name);
    CHECK(answer.hasReading());
    CHECK(answer.hasTraining() == trains);
    CHECK(answer.hasAdmin() == administers);
    const auto status = peer.wait(answer.getReading().statusRequest().send().dropPipeline());
    CHECK(status.getJson().size() > 0);
  }
}

TEST_CASE("Auth: the outcome of a move is available without a token, and nothing else is") {
  TokenFile tokens;
  tokens.hold({{"ops", "admin"}});
  LocalServer server(asking(tokens));
  const auto told = askMoveOutcome({1, {"unix:///no/daemon", server.address()}}, 7, {}, kPatience);
  PSD_REQUIRE_OK(told);
  CHECK(*told == MoveOutcome::unknown);
  CHECK_FALSE(askMoveOutcome({1, {"unix:///no/daemon"}}, 7, {}, kPatience).ok());
  auto io = kj::setupAsyncIo();
  RawPeer peer(io, server.address());
  auto request = peer.login().moveOutcomeRequest();
  request.setMove(7);
  CHECK(peer.wait(request.send().dropPipeline()).getOutcome() == schema::MoveOutcome::UNKNOWN);
  const Answer answer = peer.wait(logIn(peer, ""));
  checkFailed(wire::readStatus(answer.getStatus()), ErrorCode::unauthenticated, "authentication required");
}

TEST_CASE("Auth: no token and a wrong one are refused, counted, and end the connection when they are many") {
  TokenFile tokens;
  tokens.hold({{"pool", "trainer"}});
  LocalServer server(asking(tokens));
  auto io = kj::setupAsyncIo();
  RawPeer peer(io, server.address());
  for (const std::string token : {"", "pool-secrets", "pool", ""}) {
    const auto began = std::chrono::steady_clock::now();
    const Answer answer = peer.wait(logIn(peer, token));
    CHECK(std::chrono::steady_clock::now() - began >=
          std::chrono::milliseconds(500));  // a failure is delayed
    checkFailed(wire::readStatus(answer.getStatus()), ErrorCode::unauthenticated,
                token.empty() ? "authentication required" : "does not know this token");
    CHECK_FALSE(answer.hasReading());
  }
  CHECK(testing::counter(server, "logins_refused") == 4);
  CHECK_THROWS(peer.wait(logIn(peer, "x")));
  CHECK(testing::counter(server, "connections_dropped") == 1);
  RawPeer other(io, server.address());  // a peer that failed may connect again
  CHECK(other.wait(logIn(other, "pool-secret")).getStatus().isOk());
}

TEST_CASE("Auth: a bounded number of failed logins waits, and delays no other call") {
  TokenFile tokens;
  tokens.hold({{"pool", "trainer"}});
  LocalServer server(asking(tokens));
  auto io = kj::setupAsyncIo();
  constexpr size_t kGuesses = 3 * Authenticator::kDelayedRepliesMax;
  size_t refused = 0, cutOff = 0;
  std::deque<RawPeer> peers;
  std::vector<kj::Promise<void>> answers;
  for (size_t i = 0; i < kGuesses; i++) {
    RawPeer& peer = peers.emplace_back(io, server.address());
    answers.push_back(logIn(peer, "guess " + std::to_string(i))
                          .then([&](Answer&&) { refused++; }, [&](kj::Exception&&) { cutOff++; })
                          .eagerlyEvaluate(nullptr));
  }
  RawPeer honest(io, server.address());
  CHECK(honest.wait(logIn(honest, "pool-secret")).getStatus().isOk());
  for (auto& answer : answers) honest.wait(kj::mv(answer));
  CHECK(refused + cutOff == kGuesses);
  CHECK(refused > 0);
  CHECK(cutOff > 0);
  CHECK(testing::counter(server, "logins_refused") == kGuesses);
}

TEST_CASE("Auth: the client library names the role that is needed and the one that is there") {
  TokenFile tokens;
  tokens.hold({{"eve", "reader"}, {"pool", "trainer"}});
  LocalServer server(asking(tokens));
  const std::vector<float> initial(ModelLayout(kModel).totalElements());
  const auto reader = clientOf(server, "eve-secret", std::chrono::seconds(0));
  const auto joined = reader->join({Rank{0}, 1}, kModel, [&] { return std::span<const float>(initial); });
  checkFailed(joined.status(), ErrorCode::forbidden, "this requires role trainer; 'eve' has role reader");
  const Address address = parseAddress(server.address()).value();
  for (const Status& status : {stopDaemon(address, "a test", kPatience, {"pool-secret", {}}),
                               reloadDaemon(address, kPatience, {"pool-secret", {}}).status()}) {
    checkFailed(status, ErrorCode::forbidden, "this requires role admin; 'pool' has role trainer");
  }
  checkFailed(fetchStatusJson(address, kPatience).status(), ErrorCode::unauthenticated,
              "authentication required");
  PSD_REQUIRE_OK(fetchStatusJson(address, kPatience, {"eve-secret", {}}));
  ClientOptions anonymous;
  anonymous.servers = {server.address()};
  checkFailed(Client::connect(anonymous).status(), ErrorCode::unauthenticated, "authentication required");
}

TEST_CASE("Auth: a removed or demoted name loses its session at once, with the reason") {
  const bool demoted = GENERATE(false, true), restarting = GENERATE(false, true);
  TokenFile tokens;
  tokens.hold({{"pool", "trainer"}, {"other", "trainer"}});
  LocalServer server(asking(tokens));
  std::vector<float> values(ModelLayout(kModel).totalElements());
  const auto trains = [&](const char* name, uint32_t rank, std::chrono::seconds retry) {
    auto client = clientOf(server, std::string(name) + "-secret", retry);
    PSD_REQUIRE_OK(client->join({Rank{rank}, 2}, kModel, [&] { return std::span<const float>(values); }));
    PSD_REQUIRE_OK(client->pull(values).wait());
    return client;
  };
  const auto stays = trains("other", 0, kPatience),
             goes = trains("pool", 1, restarting ? kPatience : kPatience * 0);
  if (demoted) {
    tokens.hold({{"pool", "reader"}, {"other", "trainer"}});
  } else {
    tokens.hold({{"other", "trainer"}});
  }
  const auto change = server.reload(asking(tokens));
  PSD_REQUIRE_OK(change);
  CHECK(*change == (demoted ? "token 'pool': trainer -> reader" : "token 'pool': trainer -> none"));
  server.statusWhen([](const Json& status) { return status["trainers_lost"] == 1; });
  const auto pulled = goes->pull(values).wait();
  if (demoted) {
    checkFailed(pulled.status(), ErrorCode::forbidden, "'pool' has role reader");
  } else {
    checkFailed(pulled.status(), ErrorCode::unauthenticated, "the token of 'pool' is no longer valid");
  }
  CHECK(testing::counter(server, "access_revoked") == 1);
  PSD_REQUIRE_OK(stays->pull(values).wait());
}

TEST_CASE("Auth: a reload with a token file that cannot be read changes nothing") {
  TokenFile tokens;
  tokens.hold({{"pool", "trainer"}});
  LocalServer server(asking(tokens));
  testing::writeFile(tokens.path(), "pool trainer pool-secret\n");
  const auto wrong = server.reload(asking(tokens));
  checkFailed(wrong.status(), ErrorCode::invalidArgument, "line 1: the third word is sha256:HEX");
  CHECK(wrong.message().find("pool-secret") == std::string::npos);
  REQUIRE(chmod(tokens.path().c_str(), S_IRUSR | S_IWUSR | S_IRGRP) == 0);
  checkFailed(server.reload(asking(tokens)).status(), ErrorCode::io, "chmod 600");
  auto io = kj::setupAsyncIo();
  RawPeer peer(io, server.address());
  CHECK(peer.wait(logIn(peer, "pool-secret")).getStatus().isOk());
}

TEST_CASE("Auth: a peer that never logs in is cut off, and one that has is not") {
  TokenFile tokens;
  tokens.hold({{"eve", "reader"}});
  Json settings = asking(tokens);
  settings["limits"]["login_timeout_ms"] = 100;
  LocalServer server(settings);
  auto io = kj::setupAsyncIo();
  RawPeer known(io, server.address());
  const Answer answer = known.wait(logIn(known, "eve-secret"));
  auto silent = connectTo(parseAddress(server.address()).value(), kPatience);
  PSD_REQUIRE_OK(silent);
  testing::turnUntil(io, [&] { return testing::counter(server, "connections_dropped") == 1; });
  known.wait(answer.getReading().pingRequest().send().ignoreResult());
}

TEST_CASE("Auth: without it everybody may do everything, whatever token they have") {
  LocalServer server(testing::config());
  auto io = kj::setupAsyncIo();
  RawPeer peer(io, server.address());
  const Answer answer = peer.wait(logIn(peer, "of another daemon"));
  CHECK(answer.getStatus().isOk());
  CHECK(answer.hasAdmin());
}

}  // namespace psd::auth_test

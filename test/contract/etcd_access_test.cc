// Access control of a real etcd: users and passwords, and TLS.

#include <cstdlib>

#include <kj/encoding.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include "test/contract/engine_rig.h"

namespace psd::etcd_access_test {
namespace {

using testing::EngineLoop;
using testing::EtcdProcess;
using testing::TempDir;
using Json = nlohmann::json;

const std::string kKey = "/psd/test/plan";

std::string base64(const std::string& text) {
  return kj::encodeBase64(kj::arrayPtr(reinterpret_cast<const kj::byte*>(text.data()), text.size())).cStr();
}

/// An etcd with users: joe, who may read and write below /psd/, and root.
struct UsersRig {
  EngineLoop loop;
  TempDir folder;
  std::unique_ptr<EtcdProcess> process = testing::etcdOrSkip(loop);
  const EtcdOptions asRoot = optionsOf("root", "secret");
  EtcdEndpoint root{loop.network(), loop.timer(), asRoot, process->members().front(), "secret"};

  UsersRig() {
    const EtcdOptions asAnonymous = EngineLoop::patient(process->members());
    EtcdEndpoint anonymous(loop.network(), loop.timer(), asAnonymous, process->members().front(), "");
    const auto ask = [&](const std::string& path, const Json& body) {
      PSD_REQUIRE_OK(loop.wait(anonymous.post("/v3/auth/" + path, body.dump())));
    };
    ask("user/add", {{"name", "root"}, {"password", "secret"}});
    ask("role/add", {{"name", "root"}});
    ask("user/grant", {{"user", "root"}, {"role", "root"}});
    ask("user/add", {{"name", "joe"}, {"password", "joes"}});
    ask("role/add", {{"name", "psd"}});
    ask("role/grant",
        {{"name", "psd"},
         {"perm", {{"permType", "READWRITE"}, {"key", base64("/psd/")}, {"range_end", base64("/psd0")}}}});
    ask("user/grant", {{"user", "joe"}, {"role", "psd"}});
    ask("enable", Json::object());
  }

  EtcdOptions optionsOf(const std::string& user, const std::string& password) {
    const std::string file = folder.file(user + "." + password);
    testing::writeFile(file, password + "\n");
    REQUIRE(chmod(file.c_str(), 0600) == 0);
    EtcdOptions options = EngineLoop::patient(process->members());
    options.user = user;
    options.passwordFile = file;
    return options;
  }
};

TEST_CASE("a user with a password may do what its role allows") {
  UsersRig rig;
  const auto joe = rig.loop.etcd(rig.optionsOf("joe", "joes"));
  auto heard = joe->changed(kKey, 0);
  const auto swapped = rig.loop.wait(joe->swap(kKey, 0, "first"));
  PSD_REQUIRE_OK(swapped);
  CHECK(swapped->won);
  CHECK(rig.loop.wait(kj::mv(heard)).value() == swapped->now);

  for (int i = 0; i < 3; i++) {  // a rejected call leaves a usable connection
    const auto forbidden = rig.loop.wait(joe->read("/others"));
    REQUIRE_FALSE(forbidden.ok());
    CHECK(forbidden.error().code == ErrorCode::forbidden);
    CHECK(forbidden.message() == "etcd: " + rig.process->members().front().toString() +
                                     ": etcdserver: permission denied (HTTP 403)");
    PSD_REQUIRE_OK(rig.loop.wait(joe->read(kKey)));
  }
  CHECK(rig.loop.wait(joe->changed("/others", 0)).error().code == ErrorCode::forbidden);
}

TEST_CASE("a client without a password, or with a wrong one, gets an error that says so") {
  UsersRig rig;
  const auto anonymous = rig.loop.etcd(rig.process->members());
  const auto asked = rig.loop.wait(anonymous->read(kKey));
  REQUIRE_FALSE(asked.ok());
  CHECK(asked.error().code == ErrorCode::unauthenticated);
  CHECK(asked.message().find("this etcd requires a user and a password") != std::string::npos);
  const auto wrong = rig.loop.etcd(rig.optionsOf("joe", "guessed"));
  const auto refused = rig.loop.wait(wrong->swap(kKey, 0, "first"));
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::unauthenticated);
  CHECK(refused.message().find("authentication failed") != std::string::npos);
  CHECK(rig.loop.wait(wrong->changed(kKey, 0)).error().code == ErrorCode::unauthenticated);
}

TEST_CASE("a token that etcd no longer accepts is replaced") {
  UsersRig rig;
  const auto joe = rig.loop.etcd(rig.optionsOf("joe", "joes"));
  Stored now;
  for (int i = 0; i < 3; i++) {
    const auto swapped = rig.loop.wait(joe->swap(kKey, now.revision, "text " + std::to_string(i)));
    PSD_REQUIRE_OK(swapped);
    REQUIRE(swapped->won);
    now = swapped->now;
    if (i == 0) {  // earlier tokens belong to an old store of users
      PSD_REQUIRE_OK(
          rig.loop.wait(rig.root.post("/v3/auth/user/add", R"({"name": "ann", "password": "x"})")));
    } else if (i == 1) {  // a restart drops them
      rig.process->kill(0);
      rig.process->restart(0);
      CHECK(rig.loop.readUntilAnswered(*joe, kKey) == now);
    }
  }
  // Users may be disabled and enabled again.
  PSD_REQUIRE_OK(rig.loop.wait(rig.root.post("/v3/auth/disable", "{}")));
  const auto late = rig.loop.etcd(rig.optionsOf("joe", "joes"));
  CHECK(rig.loop.wait(late->read(kKey)).value() == now);
  EtcdEndpoint anonymous(rig.loop.network(), rig.loop.timer(), rig.asRoot, rig.process->members().front(),
                         "secret");
  PSD_REQUIRE_OK(rig.loop.wait(anonymous.post("/v3/auth/enable", "{}")));
  CHECK(rig.loop.wait(late->read(kKey)).value() == now);
}

TEST_CASE("a password is read from a file that only its owner can read") {
  EngineLoop loop;
  TempDir folder;
  const auto refused = [&](const std::string& text, mode_t mode) {
    testing::writeFile(folder.file("password"), text);
    REQUIRE(chmod(folder.file("password").c_str(), mode) == 0);
    const auto opened =
        Etcd::open(loop.network(), loop.timer(),
                   {.members = {{"127.0.0.1", 1}}, .user = "joe", .passwordFile = folder.file("password")});
    return opened.ok() ? "" : opened.message();
  };
  CHECK(refused("secret\n", 0600).empty());
  CHECK(refused("secret", 0400).empty());
  CHECK(refused("secret\n", 0644).find("password") != std::string::npos);
  CHECK(refused("\nsecret\n", 0600).find("first line is empty") != std::string::npos);
  CHECK(refused("\xff\n", 0600).find("UTF-8") != std::string::npos);
}

/// A certificate authority and its certificates, made by openssl's command line.
class Authority {
 public:
  Authority() {
    run("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=ca -keyout "
        "ca.key -out ca.pem");
  }
  void sign(const std::string& name) {
    run("openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=" + name + " -keyout " +
        name + ".key -out " + name +
        ".csr && echo subjectAltName=IP:127.0.0.1 > ext && openssl x509 -req -in " + name +
        ".csr -CA ca.pem -CAkey ca.key -CAcreateserial -extfile ext -days 2 -out " + name + ".pem");
  }
  std::string file(const std::string& name) const { return folder_.file(name); }

 private:
  void run(const std::string& command) const {
    const std::string all = "cd " + folder_.path() + " && { " + command + "; } 2>log";
    INFO(testing::readFile(folder_.file("log")));
    REQUIRE(std::system(all.c_str()) == 0);
  }

  TempDir folder_;
};

TEST_CASE("https:// members and this daemon authenticate each other by certificate") {
  EngineLoop loop;
  if (!EtcdProcess::isInstalled()) testing::skipTest("there is no etcd 3.4 or later (Debian's etcd-server)");
  Authority authority, stranger;
  authority.sign("etcd");
  authority.sign("psd");
  stranger.sign("psd");
  EtcdProcess process(1, {authority.file("ca.pem"), authority.file("etcd.pem"), authority.file("etcd.key")});
  EtcdOptions options{
      .members = process.members(),
      .tls = {authority.file("ca.pem"), authority.file("psd.pem"), authority.file("psd.key")}};
  CHECK(options.members.front().toString().starts_with("https://"));
  const auto engine = loop.etcd(options);
  loop.readUntilAnswered(*engine);
  auto heard = engine->changed(kKey, 0);
  const auto swapped = loop.wait(engine->swap(kKey, 0, std::string(100'000, 'x')));
  PSD_REQUIRE_OK(swapped);
  CHECK(swapped->won);
  CHECK(loop.wait(kj::mv(heard)).value() == swapped->now);

  const auto refusal = [&](const TlsFiles& files) {
    options.tls = files;
    const auto read = loop.wait(loop.etcd(options)->read(kKey));
    REQUIRE_FALSE(read.ok());
    CHECK(read.error().code == ErrorCode::unavailable);
    return read.message();
  };
  CHECK(refusal({stranger.file("ca.pem"), "", ""}).find("certificate") != std::string::npos);
  refusal({authority.file("ca.pem"), "", ""});
  refusal({authority.file("ca.pem"), stranger.file("psd.pem"), stranger.file("psd.key")});
  options.tls.ca = authority.file("absent.pem");
  const auto opened = Etcd::open(loop.network(), loop.timer(), options);
  REQUIRE_FALSE(opened.ok());
  CHECK(opened.message().find("absent.pem") != std::string::npos);
  // A peer without TLS is not accepted as a client.
  options.members.front().tls = false;
  CHECK_FALSE(loop.wait(loop.etcd(options)->read(kKey)).ok());
}

}  // namespace
}  // namespace psd::etcd_access_test

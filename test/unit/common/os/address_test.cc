#include "common/os/address.h"

#include <sys/un.h>

#include "test/support/catch.h"

namespace psd::os_address_test {
namespace {

Address parsed(const std::string& text) {
  auto address = parseAddress(text);
  PSD_REQUIRE_OK(address);
  return *address;
}

std::string refusalOf(const std::string& text) {
  auto address = parseAddress(text);
  INFO("'" << text << "'");
  REQUIRE_FALSE(address.ok());
  CHECK(address.error().code == ErrorCode::invalidArgument);
  const std::string& message = address.message();
  const std::string begin = "address '" + text + "': ";
  const std::string end = "; write tcp://HOST:PORT, tls://HOST:PORT or unix:///PATH";
  REQUIRE(message.size() > begin.size() + end.size());
  CHECK(message.substr(0, begin.size()) == begin);
  CHECK(message.substr(message.size() - end.size()) == end);
  return message.substr(begin.size(), message.size() - begin.size() - end.size());
}

TEST_CASE("every form of a TCP address is parsed") {
  const auto tcp = Address::Kind::tcp;
  CHECK(parsed("tcp://localhost:1234") == Address{tcp, "localhost", 1234, ""});
  CHECK(parsed("tcp://10.0.0.1:0") == Address{tcp, "10.0.0.1", 0, ""});
  CHECK(parsed("tcp://*:65535") == Address{tcp, "*", 65535, ""});
  CHECK(parsed("tcp://[::1]:80") == Address{tcp, "::1", 80, ""});
  CHECK(parsed("tcp://node-7.cluster") == Address{tcp, "node-7.cluster", kDefaultPort, ""});
  CHECK(parsed("tls://node-7") == Address{tcp, "node-7", kDefaultPort, "", true});
  CHECK(parsed("tcp://[fe80::2]") == Address{tcp, "fe80::2", kDefaultPort, ""});
}

TEST_CASE("an address that only this machine can reach is recognized") {
  for (const char* text :
       {"tcp://localhost", "tls://127.0.0.1:1", "tcp://127.255.0.9", "tcp://[::1]", "unix:///x"}) {
    CHECK(isLocal(parsed(text)));
  }
  for (const char* text :
       {"tcp://*", "tls://0.0.0.0", "tcp://[::]", "tcp://128.0.0.1", "tcp://localhost.lab", "tcp://1"}) {
    CHECK_FALSE(isLocal(parsed(text)));
  }
}

TEST_CASE("a Unix address is an absolute path") {
  CHECK(parsed("unix:///run/psd.sock") == Address{Address::Kind::unixSocket, "", 0, "/run/psd.sock"});
  const std::string longest = "/" + std::string(sizeof(sockaddr_un{}.sun_path) - 2, 'x');
  CHECK(parsed("unix://" + longest).path == longest);
}

TEST_CASE("a printed address parses to the same address") {
  for (const char* text :
       {"tcp://localhost:1234", "tcp://*:0", "tcp://[::1]:80", "tls://10.0.0.1:7", "tls://[::1]:80",
        "tcp://host:80?multipath", "tls://[::1]:80?multipath", "unix:///run/psd.sock"}) {
    CHECK(parsed(text).toString() == text);
  }
  CHECK(parsed("tcp://host").toString() == "tcp://host:5500");
  CHECK(parsed("tcp://[::1]").toString() == "tcp://[::1]:5500");
}

TEST_CASE("an invalid address is rejected with the reason and all forms") {
  for (const char* text :
       {"", "localhost:1234", "http://host:1", "TCP://host:1", " tcp://host:1", "tcp:/host"}) {
    CHECK(refusalOf(text) == "unknown scheme");
  }
  for (const char* text : {"tcp://", "tcp://:80", "tcp://[]:80"}) {
    CHECK(refusalOf(text) == "the host is missing");
  }
  for (const char* text : {"tcp://h:", "tcp://h:x", "tcp://h:80x", "tcp://h:65536", "tcp://h:-1",
                           "tcp://h:+1", "tcp://h: 1", "tcp://h:1 ", "tcp://[::1]:"}) {
    CHECK(refusalOf(text) == "the port is a number from 0 to 65535");
  }
  for (const char* text : {"tcp://h:80?", "tcp://h?multi", "tls://h:80?multipath?multipath", "tcp://h?:80"}) {
    CHECK(refusalOf(text) == "?multipath is the only option");
  }
  CHECK(refusalOf("tcp://[::1:80") == "missing ']'");
  CHECK(refusalOf("tcp://[::1]80") == "':' expected after the host");
  for (const char* text : {"tcp://::1", "tcp://fe80::2:80", "tcp://h:1:2"}) {
    CHECK(refusalOf(text) == "an IPv6 address must be in [brackets]");
  }
  for (const char* text : {"unix://", "unix:///", "unix://psd.sock", "unix://./psd.sock"}) {
    CHECK(refusalOf(text) == "the path of a Unix socket is absolute");
  }
  const size_t room = sizeof(sockaddr_un{}.sun_path);
  CHECK(refusalOf("unix:///" + std::string(room - 1, 'x')) ==
        "the path of a Unix socket has at most " + std::to_string(room - 1) + " bytes");
}

}  // namespace
}  // namespace psd::os_address_test

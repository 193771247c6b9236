#include "common/os/socket.h"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <vector>

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "test/support/catch.h"
#include "test/support/temp_dir.h"

namespace psd::os_socket_test {
namespace {

using testing::TempDir;

constexpr std::chrono::milliseconds kPatience = std::chrono::seconds(30);

Address tcp(const std::string& host, uint16_t port = 0) { return {Address::Kind::tcp, host, port, ""}; }
Address unixAt(const std::string& path) { return {Address::Kind::unixSocket, "", 0, path}; }

ListenSockets listening(const Address& address) {
  auto sockets = listenOn(address);
  PSD_REQUIRE_OK(sockets);
  return std::move(*sockets);
}

bool waitFor(int fd, short events) {
  pollfd wait{fd, events, 0};
  return poll(&wait, 1, static_cast<int>(kPatience.count())) == 1;
}

/// Connects to `address`, accepts on `listener` and sends bytes both ways; returns the peer's name.
std::string exchange(const Address& address, int listener) {
  auto client = connectTo(address, kPatience);
  PSD_REQUIRE_OK(client);
  REQUIRE(waitFor(listener, POLLIN));
  auto server = acceptFrom(listener);
  PSD_REQUIRE_OK(server);
  REQUIRE(server->fd.get() >= 0);
  for (auto [from, to] : {std::pair{client->get(), server->fd.get()}, {server->fd.get(), client->get()}}) {
    char text[6] = "";
    REQUIRE(write(from, "hello", 5) == 5);
    REQUIRE(waitFor(to, POLLIN));
    REQUIRE(read(to, text, 5) == 5);
    CHECK(std::string(text) == "hello");
  }
  return server->peer;
}

int familyOf(int fd) {
  sockaddr_storage name{};
  socklen_t length = sizeof name;
  REQUIRE(getsockname(fd, reinterpret_cast<sockaddr*>(&name), &length) == 0);
  return name.ss_family;
}

/// A TCP socket bound to a port of 127.0.0.1 that listens only on request; no other process can get the port.
struct BoundPort {
  BoundPort() : fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(bind(fd.get(), reinterpret_cast<sockaddr*>(&name), sizeof name) == 0);
    socklen_t length = sizeof name;
    REQUIRE(getsockname(fd.get(), reinterpret_cast<sockaddr*>(&name), &length) == 0);
    port = ntohs(name.sin_port);
  }
  OwnFd fd;
  uint16_t port = 0;
};

TEST_CASE("port 0 is any free port, and trainers reach it") {
  const ListenSockets first = listening(tcp("127.0.0.1")), second = listening(tcp("127.0.0.1"));
  CHECK(first.address().port != 0);
  CHECK(first.address().port != second.address().port);
  REQUIRE(first.sockets().size() == 1);
  CHECK(exchange(first.address(), first.sockets()[0].get()).substr(0, 10) == "127.0.0.1:");
}

TEST_CASE("an address with ?multipath listens and connects by MPTCP where available, and accepts TCP too") {
  const auto protocolOf = [](int fd) {
    int protocol = 0;
    socklen_t length = sizeof protocol;
    REQUIRE(getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &length) == 0);
    return protocol;
  };
  Address address = tcp("127.0.0.1");
  address.multipath = true;
  const ListenSockets sockets = listening(address);
  const OwnFd probe(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_MPTCP));
  const int expected = probe.get() >= 0 ? IPPROTO_MPTCP : IPPROTO_TCP;
  CHECK(protocolOf(sockets.sockets()[0].get()) == expected);
  exchange(sockets.address(), sockets.sockets()[0].get());
  exchange(tcp("127.0.0.1", sockets.address().port), sockets.sockets()[0].get());
}

TEST_CASE("localhost and * listen on one port in every family of the machine") {
  const std::string host = GENERATE("localhost", "*");
  INFO(host);
  const ListenSockets sockets = listening(tcp(host));
  REQUIRE_FALSE(sockets.sockets().empty());
  for (const OwnFd& socket : sockets.sockets()) {
    const char* literal = familyOf(socket.get()) == AF_INET6 ? "::1" : "127.0.0.1";
    INFO(literal);
    exchange(tcp(literal, sockets.address().port), socket.get());
  }
  if (host == "localhost") {
    PSD_REQUIRE_OK(connectTo(sockets.address(), kPatience));
  }
}

TEST_CASE("accepting without a waiting peer returns an empty socket immediately") {
  const ListenSockets sockets = listening(tcp("127.0.0.1"));
  auto none = acceptFrom(sockets.sockets()[0].get());
  PSD_REQUIRE_OK(none);
  CHECK(none->fd.get() == -1);
}

TEST_CASE("accepting on a socket that does not listen returns the system's reason") {
  const BoundPort deaf;
  auto refused = acceptFrom(deaf.fd.get());
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::io);
  CHECK(refused.message() == std::strerror(EINVAL));
}

TEST_CASE("a TCP port in use is rejected with its address") {
  const ListenSockets sockets = listening(tcp("127.0.0.1"));
  auto second = listenOn(sockets.address());
  REQUIRE_FALSE(second.ok());
  CHECK(second.error().code == ErrorCode::io);
  CHECK(second.message() ==
        sockets.address().toString() + ": cannot listen: " + std::string(std::strerror(EADDRINUSE)) +
            "; 'ss -ltnp' shows which process listens there: choose another port, or 0 for any free one");
}

TEST_CASE("a Unix socket is served, and its file is removed with it") {
  const TempDir folder;
  const std::string path = folder.file("psd.sock");
  {
    const ListenSockets sockets = listening(unixAt(path));
    REQUIRE(sockets.sockets().size() == 1);
    CHECK(exchange(unixAt(path), sockets.sockets()[0].get()) == "a local process");
    CHECK(std::filesystem::exists(path));
  }
  CHECK_FALSE(std::filesystem::exists(path));
}

TEST_CASE("a moved-from listener does not remove the socket's file") {
  const TempDir folder;
  const std::string path = folder.file("psd.sock");
  ListenSockets kept;
  {
    ListenSockets first = listening(unixAt(path));
    kept = std::move(first);
  }
  CHECK(std::filesystem::exists(path));
  exchange(unixAt(path), kept.sockets()[0].get());
}

TEST_CASE("a Unix socket that another process has created at the path since is kept") {
  const TempDir folder;
  const std::string path = folder.file("psd.sock");
  ListenSockets later;
  {
    const ListenSockets first = listening(unixAt(path));
    std::filesystem::remove(path);
    later = listening(unixAt(path));
  }
  REQUIRE(std::filesystem::exists(path));
  exchange(unixAt(path), later.sockets()[0].get());
  std::filesystem::remove(path);
  testing::writeFile(path, "precious");
  { const ListenSockets gone = std::move(later); }
  CHECK(testing::readFile(path) == "precious");
}

TEST_CASE("a stale Unix socket of a dead process is replaced") {
  const TempDir folder;
  const std::string path = folder.file("psd.sock");
  {
    OwnFd gone(socket(AF_UNIX, SOCK_STREAM, 0));
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    path.copy(name.sun_path, sizeof name.sun_path - 1);
    REQUIRE(bind(gone.get(), reinterpret_cast<sockaddr*>(&name), sizeof name) == 0);
  }
  REQUIRE(std::filesystem::exists(path));
  const ListenSockets sockets = listening(unixAt(path));
  exchange(unixAt(path), sockets.sockets()[0].get());
}

TEST_CASE("a Unix socket that another process listens on is kept") {
  const TempDir folder;
  const Address address = unixAt(folder.file("psd.sock"));
  const ListenSockets sockets = listening(address);
  auto second = listenOn(address);
  REQUIRE_FALSE(second.ok());
  CHECK(second.error().code == ErrorCode::io);
  CHECK(second.message() == address.toString() + ": cannot listen: " + std::strerror(EADDRINUSE) +
                                "; another process serves it: choose another path");
  auto client = connectTo(address, kPatience);
  PSD_REQUIRE_OK(client);
}

TEST_CASE("a plain file at the path of the Unix socket is kept") {
  const TempDir folder;
  const std::string path = folder.file("notes.txt");
  testing::writeFile(path, "precious");
  REQUIRE_FALSE(listenOn(unixAt(path)).ok());
  CHECK(testing::readFile(path) == "precious");
}

TEST_CASE("a Unix socket in a missing folder is rejected with its path") {
  const TempDir folder;
  const Address address = unixAt(folder.file("missing/psd.sock"));
  auto sockets = listenOn(address);
  REQUIRE_FALSE(sockets.ok());
  CHECK(sockets.message() == address.toString() + ": cannot listen: " + std::strerror(ENOENT));
}

TEST_CASE("connecting where no process listens is unavailable") {
  const BoundPort deaf;
  auto refused = connectTo(tcp("127.0.0.1", deaf.port), kPatience);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::unavailable);
  CHECK(refused.message() ==
        tcp("127.0.0.1", deaf.port).toString() + ": cannot connect: " + std::strerror(ECONNREFUSED));

  const TempDir folder;
  auto missing = connectTo(unixAt(folder.file("psd.sock")), kPatience);
  REQUIRE_FALSE(missing.ok());
  CHECK(missing.error().code == ErrorCode::unavailable);
  CHECK(missing.message() ==
        "unix://" + folder.file("psd.sock") + ": cannot connect: " + std::strerror(ENOENT));
}

TEST_CASE("connecting to a host that does not accept times out") {
  const BoundPort busy;
  REQUIRE(listen(busy.fd.get(), 0) == 0);
  std::vector<OwnFd> queued;  // fill its queue; later connections are not answered
  for (int i = 0; i < 16; i++) {
    auto fd = connectTo(tcp("127.0.0.1", busy.port), std::chrono::milliseconds(20));
    if (!fd.ok()) {
      CHECK(fd.error().code == ErrorCode::deadlineExceeded);
      CHECK(fd.message() ==
            tcp("127.0.0.1", busy.port).toString() + ": cannot connect: " + std::strerror(ETIMEDOUT));
      return;
    }
    queued.push_back(std::move(*fd));
  }
  FAIL("a queue of length 0 accepted " << queued.size() << " connections");
}

TEST_CASE("a host without an address is rejected with its name") {
  const Address address = tcp(std::string(70, 'x'), 1);  // no label of a host name is that long
  for (const auto& error : {listenOn(address).status(), connectTo(address, kPatience).status()}) {
    REQUIRE_FALSE(error.ok());
    CHECK(error.error().code == ErrorCode::unavailable);
    CHECK_THAT(error.message(), Catch::Contains(address.toString() + ": cannot resolve the host: "));
  }
}

}  // namespace
}  // namespace psd::os_socket_test

#include <cstdlib>
#include <cstring>
#include <random>

#include <kj/async-io.h>
#include <kj/debug.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/tls/connect.h"
#include "common/tls/refusal.h"
#include "common/tls/tls_stream.h"
#include "test/support/catch.h"
#include "test/support/streams.h"
#include "test/support/temp_dir.h"

namespace psd::tls_stream_test {
namespace {

using Bytes = std::vector<kj::byte>;

/// A self-signed certificate for 127.0.0.1 and psd.test, made by openssl's command line.
class Certificate {
 public:
  Certificate() {
    const std::string command =
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj '/CN=trainer-1' "
        "-addext "
        "'subjectAltName=IP:127.0.0.1,DNS:psd.test,email:me@psd.test,URI:psd:1' -keyout " +
        key() + " -out " + path() + " 2>" + folder_.file("log");
    INFO(testing::readFile(folder_.file("log")));
    REQUIRE(std::system(command.c_str()) == 0);
  }
  std::string path() const { return folder_.file("certificate.pem"); }
  std::string key() const { return folder_.file("key.pem"); }

 private:
  testing::TempDir folder_;
};

/// Both ends of a stream after the handshake. Owned by one thread.
struct Pair {
  kj::AsyncIoContext io = kj::setupAsyncIo();
  Certificate certificate;
  kj::Own<TlsStream> server, client;

  template <class T>
  T wait(kj::Promise<T> promise) {
    return io.provider->getTimer().timeoutAfter(60 * kj::SECONDS, kj::mv(promise)).wait(io.waitScope);
  }
  void handshake(bool trickles = false, bool requireClient = false) {
    auto pipe = io.provider->newTwoWayPipe();
    if (trickles) pipe.ends[0] = kj::heap<testing::ByteWiseStream>(kj::mv(pipe.ends[0]));
    const auto serving =
        TlsContext::forServer({certificate.path(), certificate.key(), certificate.path(), requireClient});
    PSD_REQUIRE_OK(serving);
    const auto asking = TlsContext::forClient({certificate.path(), requireClient ? certificate.path() : "",
                                               requireClient ? certificate.key() : ""});
    PSD_REQUIRE_OK(asking);
    auto accepted = TlsStream::accept(kj::mv(pipe.ends[0]), *serving).eagerlyEvaluate(nullptr);
    auto connected = wait(TlsStream::connect(kj::mv(pipe.ends[1]), *asking, "127.0.0.1"));
    PSD_REQUIRE_OK(connected);
    client = *kj::mv(connected);
    auto in = wait(kj::mv(accepted));
    PSD_REQUIRE_OK(in);
    server = *kj::mv(in);
  }
};

Bytes noise(size_t size, uint32_t seed) {
  std::mt19937 random(seed);
  Bytes bytes(size);
  for (auto& byte : bytes) byte = static_cast<kj::byte>(random());
  return bytes;
}

/// Sends the bytes in pieces of varying sizes, several in a call.
kj::Promise<void> send(kj::AsyncIoStream& to, const Bytes& bytes, size_t at, std::mt19937& random) {
  if (at == bytes.size()) return kj::READY_NOW;
  auto pieces = kj::heapArrayBuilder<kj::ArrayPtr<const kj::byte>>(3);
  for (int i = 0; i < 3; i++) {
    const size_t most = random() % 3 == 0 ? 700'000 : random() % 3 == 0 ? 0 : 300;
    const size_t size = std::min<size_t>(bytes.size() - at, most == 0 ? 0 : random() % most);
    pieces.add(kj::arrayPtr(bytes.data() + at, size));
    at += size;
  }
  auto array = pieces.finish();
  auto written = to.write(array);
  return written.attach(kj::mv(array)).then([&to, &bytes, at, &random] {
    return send(to, bytes, at, random);
  });
}

kj::Promise<void> receive(kj::AsyncIoStream& from, Bytes& bytes, size_t at, std::mt19937& random) {
  if (at == bytes.size()) return kj::READY_NOW;
  const size_t most = std::min<size_t>(bytes.size() - at, 1 + random() % 400'000);
  return from.tryRead(bytes.data() + at, 1 + random() % most, most)
      .then([&, at](size_t got) -> kj::Promise<void> {
        KJ_REQUIRE(got > 0, "the stream ended too soon");
        return receive(from, bytes, at + got, random);
      });
}

}  // namespace

TEST_CASE("a socket that breaks before the handshake is reported as an unavailable daemon") {
  kj::AsyncIoContext io = kj::setupAsyncIo();
  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
  OwnFd fd(ends[0]);
  close(ends[1]);
  const auto address = parseAddress("tls://127.0.0.1:5500");
  PSD_REQUIRE_OK(address);
  const auto stream = streamOver(io, std::move(fd), *address, {}).wait(io.waitScope);
  REQUIRE_FALSE(stream.ok());
  CHECK(stream.error().code == ErrorCode::unavailable);
  CHECK(stream.message() == "tls://127.0.0.1:5500: the connection broke in the TLS handshake");
}

TEST_CASE("TLS: bytes arrive as sent, in both directions at once, in any pieces") {
  Pair pair;
  pair.handshake();
  std::mt19937 first(1), second(2), third(3), fourth(4);
  const Bytes there = noise(9'000'001, 5), back = noise(7'000'003, 6);
  Bytes gotThere(there.size()), gotBack(back.size());
  auto all = kj::heapArrayBuilder<kj::Promise<void>>(4);
  all.add(send(*pair.client, there, 0, first));
  all.add(send(*pair.server, back, 0, second));
  all.add(receive(*pair.server, gotThere, 0, third));
  all.add(receive(*pair.client, gotBack, 0, fourth));
  pair.wait(kj::joinPromises(all.finish()));
  CHECK(gotThere == there);
  CHECK(gotBack == back);
}

TEST_CASE("TLS: records that arrive in small pieces") {
  Pair pair;
  pair.handshake(true);
  std::mt19937 first(1), second(2);
  const Bytes there = noise(40'000, 3);
  Bytes got(there.size());
  auto sent = send(*pair.client, there, 0, first).eagerlyEvaluate(nullptr);
  pair.wait(receive(*pair.server, got, 0, second));
  pair.wait(kj::mv(sent));
  CHECK(got == there);
}

TEST_CASE(
    "TLS: closing one direction leaves the other open, and a later write fails like on a broken socket") {
  Pair pair;
  pair.handshake();
  kj::byte byte = 7;
  pair.wait(pair.client->write(&byte, 1));
  pair.client->shutdownWrite();
  kj::byte got[2] = {};
  CHECK(pair.wait(pair.server->tryRead(got, 2, 2)) == 1);
  CHECK(got[0] == 7);
  pair.wait(pair.server->write(&byte, 1));
  CHECK(pair.wait(pair.client->tryRead(got, 1, 2)) == 1);
  const auto failed = kj::runCatchingExceptions([&] { pair.wait(pair.client->write(&byte, 1)); });
  KJ_IF_MAYBE (exception, failed) {
    CHECK(exception->getType() == kj::Exception::Type::DISCONNECTED);
  } else {
    FAIL("it was written");
  }
}

TEST_CASE("TLS: all names of a client's certificate are reported, and none for a client without one") {
  const bool shown = GENERATE(false, true);
  Pair pair;
  pair.handshake(false, shown);
  const std::vector<std::string> all{"trainer-1", "psd.test", "me@psd.test", "psd:1"};
  CHECK(pair.server->peerNames() == (shown ? all : std::vector<std::string>()));
}

TEST_CASE("TLS: a client without the required certificate reads the rejection") {
  Pair pair;
  auto pipe = pair.io.provider->newTwoWayPipe();
  const Certificate& own = pair.certificate;
  const auto serving = TlsContext::forServer({own.path(), own.key(), own.path(), true});
  const auto asking = TlsContext::forClient({own.path(), "", ""});
  PSD_REQUIRE_OK(serving);
  PSD_REQUIRE_OK(asking);
  auto accepted = TlsStream::accept(kj::mv(pipe.ends[0]), *serving).eagerlyEvaluate(nullptr);
  auto client = pair.wait(TlsStream::connect(kj::mv(pipe.ends[1]), *asking, "psd.test"));
  PSD_REQUIRE_OK(client);
  kj::byte byte = 0;
  const auto failed = kj::runCatchingExceptions([&] { pair.wait((*client)->tryRead(&byte, 1, 1)); });
  KJ_IF_MAYBE (exception, failed) {
    const auto text = exception->getDescription();
    CHECK(isTlsRefusal({text.begin(), text.size()}));
  } else {
    FAIL("it was accepted");
  }
  *client = nullptr;  // closes the connection, which the other end waits for
  const auto refused = pair.wait(kj::mv(accepted));
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::unauthenticated);
}

TEST_CASE("TLS: bytes that are not TLS are rejected") {
  Pair pair;
  auto pipe = pair.io.provider->newTwoWayPipe();
  const auto serving = TlsContext::forServer({pair.certificate.path(), pair.certificate.key(), "", false});
  PSD_REQUIRE_OK(serving);
  auto accepted = TlsStream::accept(kj::mv(pipe.ends[0]), *serving).eagerlyEvaluate(nullptr);
  const Bytes garbage = noise(100'000, 1);
  auto written = pipe.ends[1]->write(garbage.data(), garbage.size()).eagerlyEvaluate([](kj::Exception&&) {});
  auto drained = pipe.ends[1]->readAllBytes(1 << 20).ignoreResult().eagerlyEvaluate([](kj::Exception&&) {});
  pair.wait(kj::mv(written));
  pipe.ends[1]->shutdownWrite();
  const auto refused = pair.wait(kj::mv(accepted));
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.message().find("the TLS handshake failed: ") == 0);
}

}  // namespace psd::tls_stream_test

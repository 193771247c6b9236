#include "common/http/http_listener.h"

#include <utility>

#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>

#include "common/http/http_stream.h"
#include "common/http/visitor.h"
#include "common/log/log_line.h"
#include "common/os/peer_socket.h"
#include "common/tls/tls_stream.h"

namespace psd {
namespace {

constexpr auto kAcceptAgainAfter = 100 * kj::MILLISECONDS;
constexpr const char* kUnreadable = "the headers that describe the body are invalid";

kj::HttpServerSettings settingsFor(const HttpListenerOptions& options, kj::HttpServerErrorHandler& errors,
                                   kj::HttpServerCallbacks& callbacks) {
  kj::HttpServerSettings settings;
  settings.headerTimeout = options.timeout.count() * kj::MILLISECONDS;
  settings.pipelineTimeout = settings.headerTimeout;
  settings.errorHandler = errors;
  settings.callbacks = callbacks;
  return settings;
}

}  // namespace

HttpListener::HttpListener(kj::AsyncIoContext& io, const kj::HttpHeaderTable& table, HttpSite& site,
                           const Replies& replies, HttpListenerOptions options)
    : io_(io),
      timer_(io.provider->getTimer()),
      replies_(replies),
      options_(std::move(options)),
      server_(
          timer_, table,
          [this, &site](kj::AsyncIoStream& stream) {
            return kj::heap<Visitor>(site, replies_, static_cast<HttpStream&>(stream), lastAnswer_);
          },
          settingsFor(options_, *this, lastAnswer_)),
      connections_(*this),
      tasks_(*this) {}

HttpListener::~HttpListener() noexcept(false) = default;

Status HttpListener::start() {
  using Flags = kj::LowLevelAsyncIoProvider;
  for (size_t i = 0; i < options_.listen.size(); i++) {
    const Address& address = options_.listen[i];
    Result<ListenSockets> bound = listenOn(address);
    if (!bound.ok()) return {bound.error().code, fmt::format("http.listen[{}]: {}", i, bound.message())};
    for (const OwnFd& socket : bound->sockets()) {
      receivers_.push_back(io_.lowLevelProvider->wrapListenSocketFd(
          socket.get(), Flags::ALREADY_CLOEXEC | Flags::ALREADY_NONBLOCK));
      tasks_.add(accept(*receivers_.back(), address.tls));
    }
    sockets_.push_back(*std::move(bound));
  }
  return {};
}

std::vector<std::string> HttpListener::places() const {
  std::vector<std::string> places;
  for (const ListenSockets& bound : sockets_) {
    Address address = bound.address();
    address.multipath = false;  // not valid in a browser's URL
    const std::string text = address.toString();
    const char* const scheme = address.tls ? "https" : "http";
    places.push_back(address.kind == Address::Kind::tcp ? scheme + text.substr(text.find(':')) + "/" : text);
  }
  return places;
}

kj::Promise<void> HttpListener::accept(kj::ConnectionReceiver& receiver, bool tls) {
  return receiver.accept().then(
      [this, &receiver, tls](kj::Own<kj::AsyncIoStream> stream) {
        admit(kj::mv(stream), tls);
        return accept(receiver, tls);
      },
      [this, &receiver, tls](kj::Exception&& exception) {  // possibly out of descriptors
        logLine(spdlog::level::warn, {.event = "accept_failed", .limited = true},
                "http: cannot accept a connection: {}; trying again", exception.getDescription().cStr());
        return timer_.afterDelay(kAcceptAgainAfter).then([this, &receiver, tls] {
          return accept(receiver, tls);
        });
      });
}

void HttpListener::admit(kj::Own<kj::AsyncIoStream> stream, bool tls) {
  if (open_ >= options_.connections) return options_.refused();
  options_.counted(++open_);
  HttpPeer peer;
  KJ_IF_MAYBE (fd, stream->getFd()) {
    peer.where = peerOf(*fd);
    peer.user = userOf(*fd);
  }
  auto served = tls ? serveTls(kj::mv(stream), std::move(peer)) : serve(kj::mv(stream), std::move(peer));
  connections_.add(served.attach(kj::defer([this] { options_.counted(--open_); })));
}

kj::Promise<void> HttpListener::serve(kj::Own<kj::AsyncIoStream> stream, HttpPeer peer) {
  return server_.listenHttp(kj::heap<HttpStream>(kj::mv(stream), std::move(peer)));
}

kj::Promise<void> HttpListener::serveTls(kj::Own<kj::AsyncIoStream> stream, HttpPeer peer) {
  // A reload may have removed the key; the address stays.
  auto context = options_.tls();
  if (context == nullptr) {
    options_.handshakeRefused("the configuration has no `tls` any more");
    return kj::READY_NOW;
  }
  return timer_
      .timeoutAfter(options_.timeout.count() * kj::MILLISECONDS,
                    TlsStream::accept(kj::mv(stream), std::move(context)))
      .then(
          [this, peer = std::move(peer)](Result<kj::Own<TlsStream>> met) mutable -> kj::Promise<void> {
            if (met.ok()) {
              peer.encrypted = true;
              peer.certificateNames = (*met)->peerNames();
              return serve(*kj::mv(met), std::move(peer));
            }
            options_.handshakeRefused(met.message());
            return kj::READY_NOW;
          },
          [this](kj::Exception&& exception) -> kj::Promise<void> {
            options_.handshakeRefused(
                exception.getType() == kj::Exception::Type::OVERLOADED
                    ? fmt::format("no TLS handshake within http.timeout_ms ({})", options_.timeout.count())
                    : "the connection broke in the TLS handshake");
            return kj::READY_NOW;
          });
}

void HttpListener::taskFailed(kj::Exception&& exception) {
  spdlog::debug("http: a connection ended: {}", exception.getDescription().cStr());
}

kj::Promise<void> HttpListener::handleApplicationError(kj::Exception exception,
                                                       kj::Maybe<kj::HttpService::Response&> response) {
  // Peers that disconnect, or do not read, are not worth a warning.
  spdlog::debug("http: a request ended: {}", exception.getDescription().cStr());
  KJ_IF_MAYBE (open, response) {
    if (exception.getType() == kj::Exception::Type::FAILED)
      return replies_.text(*open, 400, "Bad Request", kUnreadable);
  }
  return kj::READY_NOW;
}

}  // namespace psd

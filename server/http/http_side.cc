#include "server/http/http_side.h"

#include <utility>

#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>

#include "common/tls/tls_stream.h"
#include "common/types/unix_time.h"
#include "server/status/status_json.h"

namespace psd {
namespace {

constexpr auto kLookEvery = 1 * kj::SECONDS;
constexpr auto kAcceptAgainAfter = 100 * kj::MILLISECONDS;
constexpr const char* kUnreadable = "what the headers say of the body is wrong\n";

kj::HttpServerSettings settingsFor(const HttpConfig& config, kj::HttpServerErrorHandler& errors,
                                   kj::HttpServerCallbacks& callbacks) {
  kj::HttpServerSettings settings;
  settings.headerTimeout = config.timeoutMs * kj::MILLISECONDS;
  settings.pipelineTimeout = config.timeoutMs * kj::MILLISECONDS;
  settings.errorHandler = errors;
  settings.callbacks = callbacks;
  return settings;
}

}  // namespace

HttpSide::HttpSide(kj::AsyncIoContext& io, const HttpConfig& config, HttpHooks hooks)
    : io_(io),
      timer_(io.provider->getTimer()),
      config_(config),
      status_(hooks.status),
      events_(hooks.events),
      daemons_(hooks.daemons),
      tls_(hooks.tls),
      handshakeRefused_(hooks.handshakeRefused),
      names_(builder_),
      table_(builder_.build()),
      replies_(names_, timer_, metrics_, config.timeoutMs * kj::MILLISECONDS),
      site_(std::move(hooks), config, names_, replies_, metrics_, history_, feed_),
      server_(
          timer_, *table_,
          [this](kj::AsyncIoStream& stream) {
            return kj::heap<Visitor>(site_, static_cast<HttpStream&>(stream), lastAnswer_);
          },
          settingsFor(config, *this, lastAnswer_)),
      connections_(*this),
      tasks_(*this) {}

HttpSide::~HttpSide() noexcept(false) = default;

Status HttpSide::start() {
  using Flags = kj::LowLevelAsyncIoProvider;
  for (const Address& address : config_.listen) {
    Result<ListenSockets> bound = listenOn(address);
    if (!bound.ok()) return {bound.error().code, "http.listen: " + bound.message()};
    for (const OwnFd& socket : bound->sockets()) {
      receivers_.push_back(io_.lowLevelProvider->wrapListenSocketFd(
          socket.get(), Flags::ALREADY_CLOEXEC | Flags::ALREADY_NONBLOCK));
      tasks_.add(accept(*receivers_.back(), address.tls));
    }
    sockets_.push_back(*std::move(bound));
  }
  look();
  tasks_.add(keepLooking());
  return {};
}

std::vector<std::string> HttpSide::places() const {
  std::vector<std::string> places;
  for (const ListenSockets& bound : sockets_) {
    Address address = bound.address();
    address.multipath = false;  // a browser's URL has no such thing
    const std::string text = address.toString();
    const char* const scheme = address.tls ? "https" : "http";
    places.push_back(address.kind == Address::Kind::tcp ? scheme + text.substr(text.find(':')) + "/" : text);
  }
  return places;
}

kj::Promise<void> HttpSide::accept(kj::ConnectionReceiver& receiver, bool tls) {
  return receiver.accept().then(
      [this, &receiver, tls](kj::Own<kj::AsyncIoStream> stream) {
        admit(kj::mv(stream), tls);
        return accept(receiver, tls);
      },
      [this, &receiver, tls](kj::Exception&& exception) {  // out of descriptors, maybe
        spdlog::warn("http: cannot accept a connection: {}; trying again", exception.getDescription().cStr());
        return timer_.afterDelay(kAcceptAgainAfter).then([this, &receiver, tls] {
          return accept(receiver, tls);
        });
      });
}

void HttpSide::admit(kj::Own<kj::AsyncIoStream> stream, bool tls) {
  if (metrics_.connections.value() >= config_.connections) {
    metrics_.connectionsRefused.add();
    return;
  }
  metrics_.connections.add();
  auto served = tls ? meet(kj::mv(stream)) : serve(kj::mv(stream), {});
  connections_.add(served.attach(kj::defer([this] { metrics_.connections.subtract(); })));
}

kj::Promise<void> HttpSide::serve(kj::Own<kj::AsyncIoStream> stream, HttpPeer peer) {
  return server_.listenHttp(kj::heap<HttpStream>(kj::mv(stream), std::move(peer)));
}

kj::Promise<void> HttpSide::meet(kj::Own<kj::AsyncIoStream> stream) {
  // A reload may have taken the key away; the address stays.
  auto context = tls_();
  if (context == nullptr) {
    handshakeRefused_("the configuration has no `tls` any more");
    return kj::READY_NOW;
  }
  return timer_
      .timeoutAfter(config_.timeoutMs * kj::MILLISECONDS,
                    TlsStream::accept(kj::mv(stream), std::move(context)))
      .then(
          [this](Result<kj::Own<TlsStream>> met) -> kj::Promise<void> {
            if (met.ok()) {
              auto names = (*met)->peerNames();
              return serve(*kj::mv(met), {.encrypted = true, .certificateNames = std::move(names)});
            }
            handshakeRefused_(met.message());
            return kj::READY_NOW;
          },
          [this](kj::Exception&& exception) -> kj::Promise<void> {
            handshakeRefused_(
                exception.getType() == kj::Exception::Type::OVERLOADED
                    ? fmt::format("no TLS handshake within http.timeout_ms ({})", config_.timeoutMs)
                    : "the connection broke in the TLS handshake");
            return kj::READY_NOW;
          });
}

kj::Promise<void> HttpSide::keepLooking() {
  return timer_.afterDelay(kLookEvery).then([this] {
    look();
    return keepLooking();
  });
}

void HttpSide::look() {
  const DaemonStatus status = status_();
  history_.add(unixTimeNow(), status);
  feed_.tick(metrics_.watchers.value() == 0 ? nlohmann::ordered_json() : documentOf(status));
}

nlohmann::ordered_json HttpSide::documentOf(const DaemonStatus& status) const {
  nlohmann::ordered_json document = statusJson(events_());
  document["time"] = unixTimeNow();
  document["status"] = statusJson(status);
  if (daemons_) document.update(statusJson(daemons_(status)));
  if (const auto& point = history_.newest())
    document["point"] = nlohmann::ordered_json::parse(jsonOfPoint(*point));
  return document;
}

void HttpSide::taskFailed(kj::Exception&& exception) {
  spdlog::debug("http: a connection ended: {}", exception.getDescription().cStr());
}

kj::Promise<void> HttpSide::handleApplicationError(kj::Exception exception,
                                                   kj::Maybe<kj::HttpService::Response&> response) {
  // Peers that hang up, or do not read, are no news.
  spdlog::debug("http: a request ended: {}", exception.getDescription().cStr());
  KJ_IF_MAYBE (open, response) {
    if (exception.getType() == kj::Exception::Type::FAILED) {
      auto content = std::make_shared<const std::string>(kUnreadable);
      return replies_.send(*open, {.code = 400, .reason = "Bad Request", .content = std::move(content)});
    }
  }
  return kj::READY_NOW;
}

}  // namespace psd

#include "server/http/http_side.h"

#include <utility>

#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>

#include "common/types/unix_time.h"
#include "server/status/status_json.h"

namespace psd {
namespace {

constexpr auto kLookEvery = 1 * kj::SECONDS;
constexpr auto kAcceptAgainAfter = 100 * kj::MILLISECONDS;

kj::HttpServerSettings settingsFor(const HttpConfig& config, kj::HttpServerErrorHandler& errors) {
  kj::HttpServerSettings settings;
  settings.headerTimeout = config.timeoutMs * kj::MILLISECONDS;
  settings.pipelineTimeout = config.timeoutMs * kj::MILLISECONDS;
  settings.errorHandler = errors;
  return settings;
}

}  // namespace

HttpSide::HttpSide(kj::AsyncIoContext& io, const HttpConfig& config, HttpHooks hooks)
    : io_(io),
      timer_(io.provider->getTimer()),
      config_(config),
      status_(hooks.status),
      events_(hooks.events),
      names_(builder_),
      table_(builder_.build()),
      replies_(names_, timer_, metrics_, config.timeoutMs * kj::MILLISECONDS),
      site_(std::move(hooks), config, names_, replies_, metrics_, history_, feed_),
      server_(timer_, *table_, site_, settingsFor(config, *this)),
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
      tasks_.add(accept(*receivers_.back()));
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
    const Address& address = bound.address();
    const std::string text = address.toString();
    places.push_back(address.kind == Address::Kind::tcp ? "http" + text.substr(text.find(':')) + "/" : text);
  }
  return places;
}

kj::Promise<void> HttpSide::accept(kj::ConnectionReceiver& receiver) {
  return receiver.accept().then(
      [this, &receiver](kj::Own<kj::AsyncIoStream> stream) {
        admit(kj::mv(stream));
        return accept(receiver);
      },
      [this, &receiver](kj::Exception&& exception) {  // out of descriptors, maybe
        spdlog::warn("http: cannot accept a connection: {}; trying again", exception.getDescription().cStr());
        return timer_.afterDelay(kAcceptAgainAfter).then([this, &receiver] { return accept(receiver); });
      });
}

void HttpSide::admit(kj::Own<kj::AsyncIoStream> stream) {
  if (metrics_.connections.value() >= config_.connections) {
    metrics_.connectionsRefused.add();
    return;
  }
  metrics_.connections.add();
  connections_.add(
      server_.listenHttp(kj::mv(stream)).attach(kj::defer([this] { metrics_.connections.subtract(); })));
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
      return replies_.send(*open, {.code = 500, .reason = "Internal Server Error"});
    }
  }
  return kj::READY_NOW;
}

}  // namespace psd

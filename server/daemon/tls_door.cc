#include "server/daemon/tls_door.h"

#include <utility>

#include <spdlog/spdlog.h>

#include "common/tls/tls_stream.h"

namespace psd {

Result<std::shared_ptr<const TlsContext>> TlsDoor::read(const std::optional<TlsConfig>& config) {
  if (!config) return std::shared_ptr<const TlsContext>();
  auto context =
      TlsContext::forServer({config->certificate, config->key, config->clientCa, config->requireClient});
  if (!context.ok()) return Error{context.error().code, "tls: " + context.message()};
  return context;
}

void TlsDoor::adopt(std::shared_ptr<const TlsContext> context) {
  const std::lock_guard lock(mutex_);
  std::swap(context_, context);
}

std::shared_ptr<const TlsContext> TlsDoor::context() const {
  const std::lock_guard lock(mutex_);
  return context_;
}

kj::Promise<kj::Maybe<Entrant>> TlsDoor::meet(EventLoop& loop, AcceptedSocket accepted) const {
  using Answer = kj::Maybe<Entrant>;
  auto context = this->context();
  const int fd = accepted.fd.release();
  wire::Socket socket = wire::wrapSocket(*loop.io().lowLevelProvider, fd);
  const auto refused = [&loop, peer = accepted.peer](const std::string& why) -> Answer {
    DaemonMetrics& counters = loop.environment().counters;
    counters.handshakesRefused.add();
    counters.connectionsOpen.subtract();
    spdlog::warn("refused {}: {}", peer, why);
    return nullptr;
  };
  // A reload may have taken the key away; the address stays.
  if (context == nullptr) return refused("the configuration has no `tls` any more");
  const uint64_t timeoutMs = loop.config().limits.loginTimeoutMs;
  return loop.timer()
      .timeoutAfter(timeoutMs * kj::MILLISECONDS,
                    TlsStream::accept(kj::mv(socket.stream), std::move(context)))
      .then(
          [fd, refused, peer = accepted.peer](Result<kj::Own<TlsStream>> stream) mutable -> Answer {
            if (!stream.ok()) return refused(stream.message());
            auto names = (*stream)->peerNames();
            return Entrant{fd, {*kj::mv(stream), nullptr}, {std::move(peer), {}, std::move(names), false}};
          },
          [refused, timeoutMs](kj::Exception&& exception) {
            if (exception.getType() == kj::Exception::Type::OVERLOADED) {
              return refused("no TLS handshake within limits.login_timeout_ms (" + std::to_string(timeoutMs) +
                             ")");
            }
            return refused("the connection broke in the TLS handshake");
          });
}

}  // namespace psd

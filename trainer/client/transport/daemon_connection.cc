#include "trainer/client/transport/daemon_connection.h"

#include <kj/async-unix.h>

#include "common/text/text.h"
#include "common/tls/refusal.h"
#include "common/wire/convert.h"
#include "common/wire/login.h"

namespace psd {
namespace {

// The daemon's slices are far smaller; a larger message is not from a psd daemon.
constexpr uint64_t kMessageBytesMax = 64u << 20;
constexpr kj::uint kDescriptorsPerMessage = 1;  // memory of the parameters, or of the ring

}  // namespace

DaemonConnection::DaemonConnection(kj::AsyncIoContext& io, wire::Socket socket, std::string server,
                                   std::chrono::microseconds spin, bool takeDescriptors)
    : server_(std::move(server)), spinner_(io.unixEventPort, spin), timer_(io.provider->getTimer()) {
  wire::MessageStreamOptions options;
  options.spinner = &spinner_;
  options.takeDescriptors = takeDescriptors;
  options.messageBytesMax = kMessageBytesMax;
  options.placer = [this](capnp::rpc::Message::Reader envelope, size_t words) {
    return placer_ ? placer_(envelope, words) : nullptr;
  };
  login_ = rpc_.emplace(kj::mv(socket), timer_, std::move(options), kDescriptorsPerMessage)
               .bootstrap()
               .castAs<schema::Login>();
}

void DaemonConnection::tearDown() {
  if (onTearDown_) std::exchange(onTearDown_, nullptr)();
  trainer_ = nullptr;
  reader_ = nullptr;
  reading_ = nullptr;
  training_ = nullptr;
  admin_ = nullptr;
  publishing_ = nullptr;
  login_ = nullptr;
  rpc_ = nullptr;
}

void DaemonConnection::setTrainer(schema::Trainer::Client session) {
  reader_ = session;
  trainer_ = kj::mv(session);
}

void DaemonConnection::end(Error why) {
  if (ended_) return;
  ended_ = std::move(why);
  if (onEnded_) std::exchange(onEnded_, nullptr)(*ended_);
}

void DaemonConnection::whenEnded(std::function<void(const Error&)> callback) {
  if (ended_ && callback) return callback(*ended_);
  onEnded_ = std::move(callback);
}

void DaemonConnection::announceEnd(Error why) {
  ended_ = std::move(why);
  KJ_IF_MAYBE (rpc, rpc_) rpc->shutdownWrite();
}

kj::Promise<void> DaemonConnection::whenDisconnected() {
  KJ_IF_MAYBE (rpc, rpc_) {
    return rpc->whenDisconnected().then([this] {
      end({ErrorCode::unavailable, "the connection to " + server_ + " broke"});
    });
  }
  return kj::READY_NOW;  // torn down already
}

kj::Promise<Error> DaemonConnection::broken(kj::Exception&& exception) {
  const std::string reason(wire::textIn(exception.getDescription()));
  const bool lost = exception.getType() == kj::Exception::Type::DISCONNECTED;
  if (const size_t at = reason.find(wire::kRevoked); at != std::string::npos) {
    const std::string why = reason.substr(at + std::string_view(wire::kRevoked).size());
    end({ErrorCode::forbidden, server_ + ": " + printable(why)});
  }
  if (isTlsRefusal(reason)) end({ErrorCode::unauthenticated, server_ + ": " + printable(reason)});
  end({ErrorCode::unavailable,
       "the connection to " + server_ + " broke" + (lost ? "" : ": " + printable(reason))});
  // Off the stack of the call that failed, and before its caller may free what the call references.
  return kj::evalLater([this] {
    tearDown();
    return *ended_;
  });
}

}  // namespace psd

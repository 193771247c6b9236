#pragma once

#include <memory>
#include <span>
#include <string>

#include <capnp/rpc-twoparty.h>
#include <kj/async-io.h>

#include "common/os/socket.h"
#include "common/wire/message_stream.h"
#include "schema/psd.capnp.h"
#include "test/support/catch.h"

namespace psd::testing {

/// A stream whose peer can be left unread: while deaf, bytes stay in the socket. Owned by one event loop's
/// thread.
class DeafStream final : public kj::AsyncIoStream {
 public:
  explicit DeafStream(kj::Own<kj::AsyncIoStream> inner) : inner_(kj::mv(inner)) {}

  /// Reads nothing any more, from the next read on.
  void beDeaf() { deaf_ = true; }

  kj::Promise<size_t> tryRead(void* buffer, size_t minBytes, size_t maxBytes) override {
    if (deaf_) return kj::Promise<size_t>(kj::NEVER_DONE);
    return inner_->tryRead(buffer, minBytes, maxBytes);
  }
  kj::Promise<void> write(const void* buffer, size_t size) override { return inner_->write(buffer, size); }
  kj::Promise<void> write(kj::ArrayPtr<const kj::ArrayPtr<const kj::byte>> pieces) override {
    return inner_->write(pieces);
  }
  kj::Promise<void> whenWriteDisconnected() override { return inner_->whenWriteDisconnected(); }
  void shutdownWrite() override { inner_->shutdownWrite(); }

 private:
  kj::Own<kj::AsyncIoStream> inner_;
  bool deaf_ = false;
};

/// A peer of a daemon that speaks Cap'n Proto's RPC as the library comes, and so may say anything that the
/// schema can express. Owned by one thread, that of `io`.
class RawPeer {
 public:
  RawPeer(kj::AsyncIoContext& io, const std::string& server) : io_(io) {
    auto fd = connectTo(parseAddress(server).value(), std::chrono::seconds(60));
    PSD_REQUIRE_OK(fd);
    wire::Socket socket = wire::wrapSocket(*io.lowLevelProvider, fd->release());
    stream_ = kj::heap<DeafStream>(kj::mv(socket.stream));
    constexpr auto kSide = capnp::rpc::twoparty::Side::CLIENT;
    network_ = socket.descriptors != nullptr
                   ? kj::heap<capnp::TwoPartyVatNetwork>(*socket.descriptors, kDescriptorsPerMessage, kSide)
                   : kj::heap<capnp::TwoPartyVatNetwork>(*stream_, kSide);
    rpc_ = kj::heap<capnp::RpcSystem<capnp::rpc::twoparty::VatId>>(capnp::makeRpcClient(*network_));
    capnp::MallocMessageBuilder vat;
    auto id = vat.initRoot<capnp::rpc::twoparty::VatId>();
    id.setSide(capnp::rpc::twoparty::Side::SERVER);
    login_ = kj::heap<schema::Login::Client>(rpc_->bootstrap(id).castAs<schema::Login>());
  }

  schema::Login::Client& login() { return *login_; }
  // What the daemon lets this peer do; logs in, if that has not been done.
  schema::Reading::Client reading() { return granted().getReading(); }
  schema::Training::Client training() { return granted().getTraining(); }
  schema::Admin::Client admin() { return granted().getAdmin(); }
  /// Over TCP; a Unix socket, which takes descriptors too, is always read.
  DeafStream& stream() { return *stream_; }

  /// Waits a minute at most.
  template <class T>
  T wait(kj::Promise<T> promise) {
    return io_.provider->getTimer().timeoutAfter(60 * kj::SECONDS, kj::mv(promise)).wait(io_.waitScope);
  }

 private:
  static constexpr kj::uint kDescriptorsPerMessage = 1;

  schema::LoginResult::Reader granted() {
    if (answer_ == nullptr) {
      auto request = login_->loginRequest();
      request.setProtocolVersion(schema::PROTOCOL_VERSION);
      request.setPeer("a test");
      answer_ = wait(request.send().dropPipeline());
    }
    const auto& answer = KJ_ASSERT_NONNULL(answer_);
    REQUIRE(answer.getStatus().isOk());
    return answer;
  }

  kj::AsyncIoContext& io_;
  kj::Own<DeafStream> stream_;
  kj::Own<capnp::TwoPartyVatNetwork> network_;
  kj::Own<capnp::RpcSystem<capnp::rpc::twoparty::VatId>> rpc_;
  kj::Own<schema::Login::Client> login_;
  kj::Maybe<capnp::Response<schema::LoginResult>> answer_;  // once logged in
};

}  // namespace psd::testing

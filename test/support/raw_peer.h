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
#include "test/support/streams.h"

namespace psd::testing {

/// A peer of a daemon that speaks Cap'n Proto RPC with the stock library, and so can send anything that the
/// schema can express. Owned by one thread, that of `io`.
class RawPeer {
 public:
  RawPeer(kj::AsyncIoContext& io, const std::string& server) : io_(io) {
    auto fd = connectTo(parseAddress(server).value(), std::chrono::seconds(60));
    PSD_REQUIRE_OK(fd);
    wire::Socket socket = wire::wrapSocket(*io.lowLevelProvider, fd->release());
    stream_ = kj::heap<PausableStream>(kj::mv(socket.stream));
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
  // The capability that the daemon grants this peer; logs in on the first call.
  schema::Reading::Client reading() { return granted().getReading(); }
  schema::Training::Client training() { return granted().getTraining(); }
  schema::Admin::Client admin() { return granted().getAdmin(); }
  /// The stream over TCP; a Unix socket, which also carries descriptors, is always read.
  PausableStream& stream() { return *stream_; }

  /// Waits up to a minute.
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
  kj::Own<PausableStream> stream_;
  kj::Own<capnp::TwoPartyVatNetwork> network_;
  kj::Own<capnp::RpcSystem<capnp::rpc::twoparty::VatId>> rpc_;
  kj::Own<schema::Login::Client> login_;
  kj::Maybe<capnp::Response<schema::LoginResult>> answer_;  // once logged in
};

}  // namespace psd::testing

#pragma once

#include <memory>

#include <capnp/rpc-twoparty.h>
#include <kj/async-io.h>

#include "common/wire/message_stream.h"

namespace psd::wire {

/// Cap'n Proto's RPC over a connection that this program has made, with a MessageStream below it. What was
/// called ends with it. Belongs to one event loop.
class ClientRpc {
 public:
  /// `descriptorsMax`: of a message. `options.descriptors` is the socket's, whatever is given.
  ClientRpc(Socket socket, kj::Timer& timer, MessageStreamOptions options, uint32_t descriptorsMax = 0,
            capnp::ReaderOptions reading = {});

  MessageStream& stream() { return stream_; }
  /// What the other end offers first.
  capnp::Capability::Client bootstrap();
  /// Sends no more. What the other end has sent still comes.
  void shutdownWrite() { socket_->shutdownWrite(); }
  /// Resolves when the other end has hung up, or the connection broke.
  kj::Promise<void> whenDisconnected() { return network_.onDisconnect(); }

 private:
  kj::Own<kj::AsyncIoStream> socket_;
  MessageStream stream_;
  capnp::TwoPartyVatNetwork network_;
  capnp::RpcSystem<capnp::rpc::twoparty::VatId> rpc_;
};

}  // namespace psd::wire

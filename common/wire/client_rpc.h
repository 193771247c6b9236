#pragma once

#include <memory>

#include <capnp/rpc-twoparty.h>
#include <kj/async-io.h>

#include "common/wire/message_stream.h"

namespace psd::wire {

/// Cap'n Proto RPC over an outgoing connection, on top of a MessageStream. Its destruction cancels
/// outstanding calls. Belongs to one event loop.
class ClientRpc {
 public:
  /// `descriptorsMax`: per message. `options.descriptors` is overwritten with the socket's.
  ClientRpc(Socket socket, kj::Timer& timer, MessageStreamOptions options, uint32_t descriptorsMax = 0,
            capnp::ReaderOptions reading = {});

  MessageStream& stream() { return stream_; }
  /// The peer's bootstrap capability.
  capnp::Capability::Client bootstrap();
  /// Ends sending. Data that the peer has sent still arrives.
  void shutdownWrite() { socket_->shutdownWrite(); }
  /// Resolves when the peer has disconnected or the connection broke.
  kj::Promise<void> whenDisconnected() { return network_.onDisconnect(); }

 private:
  kj::Own<kj::AsyncIoStream> socket_;
  MessageStream stream_;
  capnp::TwoPartyVatNetwork network_;
  capnp::RpcSystem<capnp::rpc::twoparty::VatId> rpc_;
};

}  // namespace psd::wire

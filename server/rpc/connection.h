#pragma once

#include <memory>
#include <optional>
#include <string>

#include <capnp/rpc-twoparty.h>
#include <kj/async-io.h>

#include "common/wire/message_stream.h"
#include "server/rpc/event_loop.h"

namespace psd {

/// One peer's connection: socket, message stream and RPC system. Owned by its event loop and used on
/// that loop's thread only.
class Connection {
 public:
  Connection(EventLoop& loop, int fd, std::string peer);
  ~Connection();

  /// "127.0.0.1:53211" or the Unix socket's path; with the peer's own words once it said hello.
  const std::string& peer() const { return peer_; }
  void setPeer(std::string name) { peer_ += " (" + std::move(name) + ")"; }

  kj::Promise<void> whenDisconnected() { return network_->onDisconnect(); }

  /// Bytes of answers that wait for the peer to read.
  uint64_t queuedBytes() { return network_->getCurrentQueueSize(); }
  /// Whether another answer with payload may be built now (limits.outgoing_bytes).
  bool mayQueue();
  /// Keeps `owner` alive until the answer that references `begin` is written.
  void pin(const void* begin, std::shared_ptr<const void> owner) { stream_->pin(begin, std::move(owner)); }

  /// Why this connection must end now, if it must: the peer does not read what waits for it.
  std::optional<std::string> stalled();

  void trainerCame() { trainers_++; }
  void trainerWent() { trainers_--; }
  uint32_t trainers() const { return trainers_; }

 private:
  EventLoop& loop_;
  std::string peer_;
  uint32_t trainers_ = 0;
  kj::Own<kj::AsyncIoStream> socket_;
  kj::Own<wire::MessageStream> stream_;
  kj::Own<capnp::TwoPartyVatNetwork> network_;
  kj::Maybe<capnp::RpcSystem<capnp::rpc::twoparty::VatId>> rpc_;
};

}  // namespace psd

#pragma once

#include <string>
#include <string_view>
#include <utility>

#include <kj/async-io.h>

#include "common/http/http_peer.h"

namespace psd {

/// The connection under kj-http, with what kj-http does not expose: the peer, and whether its first request
/// was HTTP/1.0. It can be ended between two requests, which kj-http leaves to peers. Belongs to an event
/// loop.
class HttpStream final : public kj::AsyncIoStream {
 public:
  HttpStream(kj::Own<kj::AsyncIoStream> below, HttpPeer peer)
      : below_(kj::mv(below)), peer_(std::move(peer)) {}

  const HttpPeer& peer() const { return peer_; }
  /// The peer speaks HTTP/1.0 and reads an answer until the connection closes.
  bool isHttp10() const { return old_; }

  /// From now on reads return the end of the stream.
  void end() { ended_ = true; }
  bool ended() const { return ended_; }

  kj::Promise<size_t> tryRead(void* buffer, size_t minBytes, size_t maxBytes) override;
  kj::Promise<void> write(const void* buffer, size_t size) override { return below_->write(buffer, size); }
  kj::Promise<void> write(kj::ArrayPtr<const kj::ArrayPtr<const kj::byte>> pieces) override {
    return below_->write(pieces);
  }
  kj::Promise<void> whenWriteDisconnected() override { return below_->whenWriteDisconnected(); }
  void shutdownWrite() override { below_->shutdownWrite(); }
  void abortRead() override { below_->abortRead(); }
  void getsockopt(int level, int option, void* value, kj::uint* length) override {
    below_->getsockopt(level, option, value, length);
  }

 private:
  void detectVersion(std::string_view bytes);

  kj::Own<kj::AsyncIoStream> below_;
  const HttpPeer peer_;
  std::string lineEnd_;    // the last bytes of the first request's first line
  bool lineRead_ = false;  // up to its end
  bool old_ = false;
  bool ended_ = false;
};

}  // namespace psd

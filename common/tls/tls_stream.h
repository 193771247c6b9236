#pragma once

#include <memory>
#include <string>
#include <vector>

#include <kj/async-io.h>

#include "common/tls/tls_context.h"

namespace psd {

/// A byte stream encrypted with TLS 1.3 over another one. Buffers between OpenSSL and the lower stream grow
/// under load, so that few system calls move many records. Owned by one event loop's thread.
class TlsStream final : public kj::AsyncIoStream {
 public:
  /// Performs the handshake as the accepting end. On unauthenticated the peer has received an alert;
  /// unavailable: the peer disconnected. No time limit.
  static kj::Promise<Result<kj::Own<TlsStream>>> accept(kj::Own<kj::AsyncIoStream> below,
                                                        std::shared_ptr<const TlsContext> context);
  /// Performs the handshake as the end that connected to `host`, a name or an IP address, for which the
  /// peer's certificate must be valid.
  static kj::Promise<Result<kj::Own<TlsStream>>> connect(kj::Own<kj::AsyncIoStream> below,
                                                         std::shared_ptr<const TlsContext> context,
                                                         const std::string& host);

  TlsStream(kj::Own<kj::AsyncIoStream> below, std::shared_ptr<const TlsContext> context);
  ~TlsStream() noexcept(false);

  /// The names in the peer's verified certificate: the common name, then all DNS names, mail addresses and
  /// URIs; empty if the peer has presented no certificate.
  std::vector<std::string> peerNames() const;

  kj::Promise<size_t> tryRead(void* buffer, size_t minBytes, size_t maxBytes) override;
  kj::Promise<void> write(const void* buffer, size_t size) override;
  kj::Promise<void> write(kj::ArrayPtr<const kj::ArrayPtr<const kj::byte>> pieces) override;
  kj::Promise<void> whenWriteDisconnected() override { return below_->whenWriteDisconnected(); }
  void shutdownWrite() override;
  void abortRead() override { below_->abortRead(); }
  void getsockopt(int level, int option, void* value, kj::uint* length) override {
    below_->getsockopt(level, option, value, length);
  }

 private:
  /// Bytes in transit between OpenSSL and the lower stream.
  struct Buffer {
    kj::Array<kj::byte> bytes;
    size_t begin = 0, end = 0;

    size_t size() const { return end - begin; }
  };
  struct Bio;  // callbacks for OpenSSL's I/O

  kj::Promise<Result<kj::Own<TlsStream>>> handshake(kj::Own<TlsStream> self);
  kj::Promise<Result<kj::Own<TlsStream>>> refuse(kj::Own<TlsStream> self);
  kj::Promise<size_t> readOn(kj::byte* buffer, size_t minBytes, size_t maxBytes, size_t done);
  kj::Promise<void> writeOn(kj::ArrayPtr<const kj::ArrayPtr<const kj::byte>> pieces, size_t offset);
  /// Encrypts from the pieces until they end or the buffer is full.
  void encrypt(kj::ArrayPtr<const kj::ArrayPtr<const kj::byte>>& pieces, size_t& offset);
  /// Reads from the lower stream; false at its end.
  kj::Promise<bool> fill();
  kj::Promise<void> flush();
  kj::Promise<void> discard(size_t bytesMax);
  [[noreturn]] void fail(int error);
  Error handshakeError() const;

  const std::shared_ptr<const TlsContext> context_;
  const OpenSsl& openSsl_;
  kj::Own<kj::AsyncIoStream> below_;
  SSL* const ssl_;
  Buffer in_, out_, sending_;
  kj::ArrayPtr<const kj::byte> piece_;        // argument of the single-buffer write()
  size_t smallFills_ = 0, smallFlushes_ = 0;  // consecutive
  bool ended_ = false;                        // the peer has ended its direction
  bool shutDown_ = false;                     // this end has ended its direction
  kj::Promise<void> closeNotify_ = kj::READY_NOW;
};

}  // namespace psd

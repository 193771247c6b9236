#pragma once

#include <memory>
#include <string>
#include <vector>

#include <kj/async-io.h>

#include "common/tls/tls_context.h"

namespace psd {

/// A byte stream that travels through another one encrypted, with TLS 1.3. Between OpenSSL and the stream
/// below lie buffers, which grow while much comes or goes, so that few system calls move many records. Owned
/// by one event loop's thread.
class TlsStream final : public kj::AsyncIoStream {
 public:
  /// Shakes hands as the end that was connected to. An Error, unauthenticated, has told the peer; a peer that
  /// hung up: unavailable. There is no limit of time.
  static kj::Promise<Result<kj::Own<TlsStream>>> accept(kj::Own<kj::AsyncIoStream> below,
                                                        std::shared_ptr<const TlsContext> context);
  /// Shakes hands as the end that connected to `host`, a name or an IP address, for which the other end's
  /// certificate must be.
  static kj::Promise<Result<kj::Own<TlsStream>>> connect(kj::Own<kj::AsyncIoStream> below,
                                                         std::shared_ptr<const TlsContext> context,
                                                         const std::string& host);

  TlsStream(kj::Own<kj::AsyncIoStream> below, std::shared_ptr<const TlsContext> context);
  ~TlsStream() noexcept(false);

  /// Of the peer's certificate, which was checked: the common name, then all DNS names, addresses of mail and
  /// URIs; none where it has shown no certificate.
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
  /// Bytes on their way between OpenSSL and the stream below.
  struct Buffer {
    kj::Array<kj::byte> bytes;
    size_t begin = 0, end = 0;

    size_t size() const { return end - begin; }
  };
  struct Bio;  // OpenSSL's calls for bytes

  kj::Promise<Result<kj::Own<TlsStream>>> shakeHands(kj::Own<TlsStream> self);
  kj::Promise<Result<kj::Own<TlsStream>>> refuse(kj::Own<TlsStream> self);
  kj::Promise<size_t> readOn(kj::byte* buffer, size_t minBytes, size_t maxBytes, size_t done);
  kj::Promise<void> writeOn(kj::ArrayPtr<const kj::ArrayPtr<const kj::byte>> pieces, size_t offset);
  /// Encrypts from the pieces until they end or the buffer is full enough.
  void encrypt(kj::ArrayPtr<const kj::ArrayPtr<const kj::byte>>& pieces, size_t& offset);
  /// Takes in what the stream below has; whether there was anything before its end.
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
  kj::ArrayPtr<const kj::byte> piece_;        // of write() with one
  size_t smallFills_ = 0, smallFlushes_ = 0;  // in a row
  bool ended_ = false;                        // the peer sends nothing more
  bool shutDown_ = false;                     // nor this end
  kj::Promise<void> farewell_ = kj::READY_NOW;
};

}  // namespace psd

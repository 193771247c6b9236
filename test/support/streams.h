#pragma once

#include <kj/async-io.h>

namespace psd::testing {

/// A stream that forwards everything to another. Owned by one event loop's thread, like those below.
class ForwardingStream : public kj::AsyncIoStream {
 public:
  explicit ForwardingStream(kj::Own<kj::AsyncIoStream> inner) : inner_(kj::mv(inner)) {}

  kj::Promise<size_t> tryRead(void* buffer, size_t least, size_t most) override {
    return inner_->tryRead(buffer, least, most);
  }
  kj::Promise<void> write(const void* buffer, size_t size) override { return inner_->write(buffer, size); }
  kj::Promise<void> write(kj::ArrayPtr<const kj::ArrayPtr<const kj::byte>> pieces) override {
    return inner_->write(pieces);
  }
  kj::Promise<void> whenWriteDisconnected() override { return inner_->whenWriteDisconnected(); }
  void shutdownWrite() override { inner_->shutdownWrite(); }

 private:
  kj::Own<kj::AsyncIoStream> inner_;
};

/// A stream whose peer can be left unread: while paused, bytes stay in the socket.
class PausableStream final : public ForwardingStream {
 public:
  using ForwardingStream::ForwardingStream;

  /// Stops reading, from the next read on, until resumeReading().
  void pauseReading() {
    auto gate = kj::newPromiseAndFulfiller<void>();
    reading_ = gate.promise.fork();
    resume_ = kj::mv(gate.fulfiller);
  }
  void resumeReading() { resume_->fulfill(); }

  kj::Promise<size_t> tryRead(void* buffer, size_t least, size_t most) override {
    return reading_.addBranch().then(
        [this, buffer, least, most] { return ForwardingStream::tryRead(buffer, least, most); });
  }

 private:
  kj::ForkedPromise<void> reading_ = kj::Promise<void>(kj::READY_NOW).fork();
  kj::Own<kj::PromiseFulfiller<void>> resume_;
};

/// Delivers one byte at a time, so that a record arrives in as many pieces as possible.
class ByteWiseStream final : public ForwardingStream {
 public:
  using ForwardingStream::ForwardingStream;

  kj::Promise<size_t> tryRead(void* buffer, size_t, size_t) override {
    return ForwardingStream::tryRead(buffer, 1, 1);
  }
};

}  // namespace psd::testing

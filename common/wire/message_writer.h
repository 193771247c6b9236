#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include <capnp/common.h>
#include <kj/async-io.h>
#include <kj/timer.h>

namespace psd::wire {

/// The sending half of a MessageStream. A small message is sent at once if nothing was written during the
/// last few microseconds. Further small messages of one turn of the event loop go out in one write, at the
/// end of the turn or in front of the next larger message, which is sent without a copy. Accepted but
/// unwritten messages are bounded and counted here; all other memory is the caller's.
///
/// Owned by one event loop's thread. `stream`, `descriptors`, `timer` and `clock` outlive it.
class MessageWriter {
 public:
  using Segments = kj::ArrayPtr<const kj::ArrayPtr<const capnp::word>>;

  /// `descriptors` is the stream itself if it can pass descriptors, else null. `onFailed` is called once when
  /// a write fails. `clock` is read at every small message; the timer's time is that of the turn.
  MessageWriter(kj::AsyncIoStream& stream, kj::AsyncCapabilityStream* descriptors, kj::Timer& timer,
                const kj::MonotonicClock& clock, std::function<void()> onFailed);

  /// Resolves when the message is written or, if it is small, accepted: `fds` and `segments` are no longer
  /// needed then. At most one call is outstanding.
  kj::Promise<void> write(kj::ArrayPtr<const int> fds, Segments segments);
  /// Starts to write the accepted messages now rather than at the end of the turn.
  void flush();
  /// Writes the accepted messages, then ends the stream in this direction.
  kj::Promise<void> end();

  /// See MessageStream::pin().
  void pin(const void* begin, std::shared_ptr<const void> owner);
  size_t pinCount() const { return pins_.size(); }

  /// Bytes of messages that were accepted and are not written yet.
  uint64_t heldBytes() const { return gathered_.size() + writing_.size(); }
  size_t heldMessages() const { return gatheredMessages_ + writingMessages_; }
  /// How long the kernel has not accepted more of the current write.
  kj::Duration waitTime() const;

 private:
  using Pins = std::vector<std::shared_ptr<const void>>;

  /// Writes the gathered messages, now or at the end of the turn.
  void schedule();
  kj::Promise<void> writeGathered();
  kj::Promise<void> writeLarge(kj::ArrayPtr<const int> fds, Segments segments);
  /// Resolves when no write is in flight.
  kj::Promise<void> whenIdle();
  void gather(Segments segments);
  /// Starts a write of the gathered messages.
  void beginWriting();
  void endWriting();
  void failed(const kj::Exception& exception);
  Pins takePins(Segments segments);

  kj::AsyncIoStream& stream_;
  kj::AsyncCapabilityStream* const descriptors_;
  kj::Timer& timer_;
  const kj::MonotonicClock& clock_;
  const std::function<void()> onFailed_;
  std::multimap<const void*, std::shared_ptr<const void>> pins_;
  std::vector<std::byte> gathered_;  // framed messages that wait for the end of the turn
  std::vector<std::byte> writing_;   // framed messages in the current write
  size_t gatheredMessages_ = 0;
  size_t writingMessages_ = 0;
  kj::TimePoint writingSince_ = kj::origin<kj::TimePoint>();
  kj::TimePoint lastWrite_;  // start of the last write
  bool busy_ = false;        // a write is in flight
  bool scheduled_ = false;   // flushing_ waits for the end of the turn
  kj::Maybe<kj::Own<kj::PromiseFulfiller<void>>> idle_;
  kj::Maybe<kj::Exception> failure_;
  kj::Promise<void> flushing_ = kj::READY_NOW;
};

}  // namespace psd::wire

#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>

#include <capnp/rpc.capnp.h>
#include <capnp/serialize-async.h>
#include <kj/async-io.h>
#include <kj/io.h>
#include <kj/timer.h>

#include "common/budget/byte_budget.h"
#include "common/wire/buffer_pool.h"
#include "common/wire/message_writer.h"
#include "common/wire/spinner.h"

namespace psd::wire {

/// Bytes of incoming messages that each connection may hold before any of them counts against the budget.
/// This many bytes of a counted message must arrive before it gets its lease: a message that is only
/// announced takes nothing.
inline constexpr uint64_t kUnbudgetedBytes = 64u << 10;

/// Receives the first segment of an incoming message; may return the memory (exactly `words` long) into which
/// its one large external segment is read. Null: a pooled buffer.
using Placer = std::function<kj::ArrayPtr<capnp::word>(capnp::rpc::Message::Reader envelope, size_t words)>;

struct MessageStreamOptions {
  /// A larger message ends the connection before memory is allocated for it.
  uint64_t messageBytesMax = 8u << 20;
  /// A message whose first bytes have arrived must be complete within this time; zero: no limit.
  kj::Duration readTimeout = 0 * kj::SECONDS;
  /// Called with the reason when the peer's data cannot be read.
  std::function<void(kj::StringPtr reason)> onRefused;
  /// Called before each message is read; while it returns false, incoming data stays in the socket.
  std::function<bool()> mayRead;
  /// Limit on calls that the peer has made and not finished, to whose answers it may still refer: each takes
  /// memory here, answered or not. Another call ends the connection, and so does a message with many
  /// capabilities or of a kind outside two-party RPC. UINT64_MAX: the peer is trusted.
  uint64_t unfinishedCallsMax = UINT64_MAX;
  /// Budget that is charged with the size of each message as long as it is held, except for kUnbudgetedBytes.
  /// While the budget is exhausted, the rest of a message stays in the socket, without a time limit. Null: no
  /// budget.
  std::shared_ptr<ByteBudget> budget;
  /// Called when a message starts to wait for the budget.
  std::function<void()> onBudgetSpent;
  /// The stream itself if it can pass descriptors (Unix sockets); null: descriptors are not sent.
  kj::AsyncCapabilityStream* descriptors = nullptr;
  /// Accepts descriptors from the peer. Otherwise the system closes them.
  bool takeDescriptors = false;
  Placer placer;
  /// Notified of each message; outlives the stream. Null: none.
  Spinner* spinner = nullptr;
};

/// Cap'n Proto's standard message framing over a byte stream, for TwoPartyVatNetwork, with what a data path
/// also needs: pooled receive buffers, direct placement of a large segment into its destination, read-ahead
/// and combined writes for small messages, limits on sizes and times, and pins that keep referenced memory
/// alive until it is written.
///
/// kj's own reads recurse once per partial result, so a peer that trickles bytes could overflow the stack;
/// here every read accepts any available bytes (`minBytes` 1) and loops through the event loop. Owned by one
/// event loop's thread. `stream`, `pool` and `timer` outlive it.
class MessageStream final : public capnp::MessageStream {
 public:
  MessageStream(kj::AsyncIoStream& stream, std::shared_ptr<BufferPool> pool, kj::Timer& timer,
                MessageStreamOptions options);

  kj::Promise<kj::Maybe<capnp::MessageReaderAndFds>> tryReadMessage(
      kj::ArrayPtr<kj::AutoCloseFd> fdSpace, capnp::ReaderOptions options,
      kj::ArrayPtr<capnp::word> scratch) override;
  kj::Promise<void> writeMessage(kj::ArrayPtr<const int> fds,
                                 kj::ArrayPtr<const kj::ArrayPtr<const capnp::word>> segments) override;
  kj::Promise<void> writeMessages(
      kj::ArrayPtr<kj::ArrayPtr<const kj::ArrayPtr<const capnp::word>>> messages) override;
  kj::Maybe<int> getSendBufferSize() override;
  kj::Promise<void> end() override;

  /// Keeps `owner` alive until a message with a segment at `begin` is written, or this stream is destroyed. A
  /// reply may wait in the network's queue long after its call and capabilities are gone, so only the stream
  /// knows when referenced memory is no longer needed.
  void pin(const void* begin, std::shared_ptr<const void> owner) { writer_.pin(begin, std::move(owner)); }
  size_t pinCount() const { return writer_.pinCount(); }
  /// Small messages that the network handed over and the kernel has not accepted yet, and the time that they
  /// have waited. The network's own counts do not include them.
  uint64_t heldBytes() const { return writer_.heldBytes(); }
  size_t heldMessages() const { return writer_.heldMessages(); }
  kj::Duration writeWaitTime() const { return writer_.waitTime(); }
  /// All bytes received, complete messages or not.
  uint64_t receivedBytes() const { return receivedBytes_; }
  /// Whether reading of the current message is suspended because the budget is exhausted.
  bool waitsForBudget() const { return waitsForBudget_; }
  /// Whether the current message holds its lease of the budget while the rest of it is still to arrive.
  bool holdsBudgetForMore() const { return holdsBudgetForMore_; }
  /// Whether this stream ended because the peer closed, disconnected or was refused. If not, the conversation
  /// was ended over the content of the messages.
  bool ended() const { return ended_; }
  /// Whether the newest message that was read is the peer's abort, which ends the conversation and is
  /// followed by its close.
  bool aborted() const;

 private:
  class Incoming;
  using Read = kj::Maybe<capnp::MessageReaderAndFds>;

  /// Reads a message of which some bytes are in the read-ahead buffer.
  kj::Promise<Read> readNext(kj::ArrayPtr<kj::AutoCloseFd> fdSpace, capnp::ReaderOptions options);
  /// Passes a complete message to the reader.
  Read handOver(kj::Own<Incoming> message, kj::ArrayPtr<kj::AutoCloseFd> fdSpace);
  /// Counts unfinished calls, and refuses messages that the RPC system would echo or track at length.
  void checkKind(capnp::MessageReader& message);
  /// Fills `message` at once if all of it is in the read-ahead buffer.
  bool takeWhole(Incoming& message);
  kj::Promise<void> readInto(std::byte* into, size_t bytes);
  kj::Promise<void> readTable(Incoming& message);
  void measure(Incoming& message);
  kj::Promise<void> admit(Incoming& message);
  /// Takes a message's lease of the budget, if it needs one and the budget has it without waiting.
  bool takeBudget(Incoming& message);
  kj::Promise<void> waitForBudget(Incoming& message);
  kj::Promise<void> readSegments(Incoming& message);
  kj::Promise<void> readPlaced(Incoming& message, uint32_t large);
  kj::Promise<void> readRest(Incoming& message);
  kj::Promise<void> inTime(const Incoming& message, kj::Promise<void> read);
  [[noreturn]] void refuse(kj::StringPtr reason);
  size_t takeBuffered(std::byte* into, size_t bytes);
  kj::Promise<size_t> receive(std::byte* into, size_t bytes);
  kj::ArrayPtr<kj::AutoCloseFd> takeDescriptors(kj::ArrayPtr<kj::AutoCloseFd> space);

  kj::AsyncIoStream& stream_;
  std::shared_ptr<BufferPool> pool_;
  kj::Timer& timer_;
  MessageStreamOptions options_;
  MessageWriter writer_;
  kj::Array<std::byte> readAhead_;  // bytes [readAheadBegin_, readAheadEnd_) are read but not consumed
  size_t readAheadBegin_ = 0;
  size_t readAheadEnd_ = 0;
  bool ended_ = false;
  uint64_t unfinishedCalls_ = 0;
  const std::shared_ptr<ByteBudget> unbudgeted_ = ByteBudget::make(kUnbudgetedBytes);
  bool waitsForBudget_ = false, holdsBudgetForMore_ = false;
  capnp::word newest_[3] = {};  // start of the newest message: its root pointer, and the struct after it

  /// Descriptors that came with bytes up to `end` of the received bytes. The system ends a read after the
  /// piece that carried some, so they belong to the message that holds the byte before `end`.
  struct Received {
    uint64_t end;
    kj::AutoCloseFd fd;
  };
  uint64_t receivedBytes_ = 0;
  std::deque<Received> received_;
};

/// A connected socket in the event loop.
struct Socket {
  kj::Own<kj::AsyncIoStream> stream;
  kj::AsyncCapabilityStream* descriptors;  ///< `stream` if it can pass descriptors, else null
};

/// Takes over a non-blocking, close-on-exec socket.
Socket wrapSocket(kj::LowLevelAsyncIoProvider& provider, int fd);

}  // namespace psd::wire

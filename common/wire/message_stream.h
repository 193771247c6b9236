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

/// Bytes of incoming messages that each connection may hold before any of them counts against the budget. So
/// many bytes of a message that counts come before it gets its share: a message that is only announced takes
/// nothing.
inline constexpr uint64_t kUnbudgetedBytes = 64u << 10;

/// Shown the first segment of an incoming message; may name the memory (exactly `words` long) that its
/// one large external segment is to be read into. Null: into a pooled buffer.
using Placer = std::function<kj::ArrayPtr<capnp::word>(capnp::rpc::Message::Reader envelope, size_t words)>;

struct MessageStreamOptions {
  /// A larger message ends the connection before memory is taken for it.
  uint64_t messageBytesMax = 8u << 20;
  /// A message whose first bytes came must be complete within this time; zero: no limit.
  kj::Duration readTimeout = 0 * kj::SECONDS;
  /// Called with the reason when what the peer sent cannot be read.
  std::function<void(kj::StringPtr reason)> onRefused;
  /// Asked before each message is read; while it says no, what the peer sends stays in the socket.
  std::function<bool()> mayRead;
  /// Calls that the peer has made and not finished, whose answers it may still refer to: each takes memory
  /// here, answered or not. One more ends the connection, and so does a message with many capabilities or of
  /// a kind that two parties do not exchange. UINT64_MAX: the peer is trusted.
  uint64_t unfinishedCallsMax = UINT64_MAX;
  /// Budget from which messages take their size, but for kUnbudgetedBytes, for as long as they are held.
  /// While there is not enough, the rest of a message stays in the socket, however long. Null: no such limit.
  std::shared_ptr<ByteBudget> budget;
  /// Called when a message begins to wait for the budget.
  std::function<void()> onBudgetSpent;
  /// The stream itself where it can pass descriptors, that is on Unix sockets; null: they are not sent.
  kj::AsyncCapabilityStream* descriptors = nullptr;
  /// Takes the descriptors that the peer sends. If not, the system closes them.
  bool takeDescriptors = false;
  Placer placer;
  /// Told of each message; outlives the stream. Null: nobody.
  Spinner* spinner = nullptr;
};

/// Cap'n Proto's standard message framing over a byte stream, for TwoPartyVatNetwork, with what a data
/// path needs beside it: pooled receive buffers, direct placement of a large segment into its
/// destination, read-ahead and common writes for small messages, a bound on sizes and times, and pins that
/// keep referenced memory alive until it is written.
///
/// kj's own reads recurse once per partial result, so a peer that trickles bytes could overflow the
/// stack; here every read asks for whatever is there (`minBytes` 1) and loops through the event loop.
/// Owned by one event loop's thread. `stream`, `pool` and `timer` outlive it.
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

  /// Keeps `owner` alive until a message with a segment that begins at `begin` is written, or this stream
  /// dies. A reply may wait in the network's queue long after its call and its capabilities are gone, so only
  /// the stream knows when referenced memory is no longer needed.
  void pin(const void* begin, std::shared_ptr<const void> owner) { writer_.pin(begin, std::move(owner)); }
  size_t pinCount() const { return writer_.pinCount(); }
  /// Small messages that the network handed over and the system has not taken yet, and how long it has not.
  /// Such messages are in none of the network's own counts.
  uint64_t heldBytes() const { return writer_.heldBytes(); }
  size_t heldMessages() const { return writer_.heldMessages(); }
  kj::Duration writeWaitTime() const { return writer_.waitTime(); }
  /// Bytes of all that the peer sent, whole messages or not.
  uint64_t receivedBytes() const { return receivedBytes_; }
  /// Whether the message at hand is not read on because the budget is spent.
  bool waitsForBudget() const { return waitsForBudget_; }
  /// Whether the message at hand has its share of the budget, and its rest is still to come.
  bool holdsBudgetForMore() const { return holdsBudgetForMore_; }
  /// Whether this stream is over because the peer closed, broke off or was refused. If not, whoever ended
  /// the conversation found fault with the messages themselves.
  bool ended() const { return ended_; }
  /// Whether the newest message that was read is the peer's abort: it ends the conversation, its close comes
  /// after it.
  bool aborted() const;

 private:
  class Incoming;
  using Read = kj::Maybe<capnp::MessageReaderAndFds>;

  /// Reads a message of which some bytes are read ahead.
  kj::Promise<Read> readNext(kj::ArrayPtr<kj::AutoCloseFd> fdSpace, capnp::ReaderOptions options);
  /// Gives a whole message to the reader.
  Read handOver(kj::Own<Incoming> message, kj::ArrayPtr<kj::AutoCloseFd> fdSpace);
  /// Keeps account of the calls that are not finished, and refuses what the RPC system would echo, or keep
  /// account of, at length.
  void checkKind(capnp::MessageReader& message);
  /// Fills `message` at once if all of it is read ahead.
  bool takeWhole(Incoming& message);
  kj::Promise<void> readInto(std::byte* into, size_t bytes);
  kj::Promise<void> readTable(Incoming& message);
  void measure(Incoming& message);
  kj::Promise<void> admit(Incoming& message);
  /// Takes a message's share of the budget, if it has one to take, where that is there without waiting.
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
  kj::Array<std::byte> ahead_;  // bytes [aheadBegin_, aheadEnd_) are read but not consumed
  size_t aheadBegin_ = 0;
  size_t aheadEnd_ = 0;
  bool ended_ = false;
  uint64_t unfinishedCalls_ = 0;
  const std::shared_ptr<ByteBudget> unbudgeted_ = ByteBudget::make(kUnbudgetedBytes);
  bool waitsForBudget_ = false, holdsBudgetForMore_ = false;
  capnp::word newest_[3] = {};  // how the newest message begins: its root pointer, and the struct after it

  /// Descriptors that came with bytes up to `end` of all that was received. The system ends a read after
  /// the piece that carried some, so they belong to the message which holds the byte before `end`.
  struct Received {
    uint64_t end;
    kj::AutoCloseFd fd;
  };
  uint64_t receivedBytes_ = 0;
  std::deque<Received> received_;
};

/// A connected socket as the event loop sees it.
struct Socket {
  kj::Own<kj::AsyncIoStream> stream;
  kj::AsyncCapabilityStream* descriptors;  ///< `stream` if it can pass descriptors, else null
};

/// Takes over a non-blocking, close-on-exec socket.
Socket wrapSocket(kj::LowLevelAsyncIoProvider& provider, int fd);

}  // namespace psd::wire

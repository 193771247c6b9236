#include "common/wire/message_stream.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <capnp/message.h>
#include <kj/debug.h>
#include <sys/socket.h>

#include "common/os/shared_memory.h"

namespace psd::wire {
namespace {

using capnp::word;

// Enough for a burst of small calls; negligible against a 1 MiB slice, of which this much is copied.
constexpr size_t kReadAheadBytes = 8192;
// Below this, placement costs more than the copy it saves.
constexpr size_t kPlaceWordsMin = (16u << 10) / sizeof(word);
constexpr uint32_t kSegmentsMax = 512;
// Most descriptors held for incomplete messages; further ones are closed.
constexpr size_t kDescriptorsMax = 4;
constexpr auto kMayReadPoll = 1 * kj::MILLISECONDS;

}  // namespace

/// One incoming message. Its memory returns to the pool when the RPC system drops it.
class MessageStream::Incoming final : public capnp::MessageReader {
 public:
  explicit Incoming(capnp::ReaderOptions options) : MessageReader(options) {}

  kj::ArrayPtr<const word> getSegment(kj::uint id) override {
    return id < laidOut.size() ? laidOut[id] : nullptr;
  }

  uint32_t segmentCount() const { return head[0] + 1; }
  uint64_t sizeOf(uint32_t segment) const { return segment == 0 ? head[1] : table[segment - 1]; }
  size_t tableLength() const { return segmentCount() & ~1u; }  // padded to a whole word
  uint64_t countWords() const {
    uint64_t words = 0;
    for (uint32_t i = 0; i < segmentCount(); i++) words += sizeOf(i);
    return words;
  }
  uint64_t memoryBytes() const { return BufferPool::memoryOf(totalWords * sizeof(word)); }

  /// Lays out the segments from `first` on consecutively in `buffer`, starting at word `at`.
  void layOut(uint32_t first, uint64_t at, uint32_t skip = UINT32_MAX) {
    auto* base = reinterpret_cast<word*>(buffer.data());
    for (uint32_t i = first; i < segmentCount(); i++) {
      if (i == skip) continue;
      laidOut[i] = kj::arrayPtr(base + at, sizeOf(i));
      at += sizeOf(i);
    }
  }
  void place(uint32_t segment, kj::ArrayPtr<word> where) { laidOut[segment] = where; }
  std::byte* at(uint32_t segment) {
    return const_cast<std::byte*>(reinterpret_cast<const std::byte*>(laidOut[segment].begin()));
  }

  uint32_t head[2] = {0, 0};  // segment count − 1, words of segment 0
  kj::Array<uint32_t> table;  // words of segments 1 …, then padding
  uint64_t totalWords = 0;
  kj::TimePoint deadline = kj::origin<kj::TimePoint>();  // by which the message must be complete
  ByteBudget::Lease lease;
  BufferPool::Buffer begun;  // the first bytes, until the budget grants a lease for the whole message
  size_t begunBytes = 0;
  bool counts = false;  // against the budget
  uint32_t next = 0;    // first segment that is not read
  BufferPool::Buffer buffer;
  kj::Array<kj::ArrayPtr<const word>> laidOut;
};

MessageStream::MessageStream(kj::AsyncIoStream& stream, std::shared_ptr<BufferPool> pool, kj::Timer& timer,
                             MessageStreamOptions options)
    : stream_(stream),
      pool_(std::move(pool)),
      timer_(timer),
      options_(std::move(options)),
      writer_(stream, options_.descriptors, timer, kj::systemPreciseMonotonicClock(),
              [this] { ended_ = true; }),
      readAhead_(kj::heapArray<std::byte>(kReadAheadBytes)) {}

void MessageStream::refuse(kj::StringPtr reason) {
  if (options_.onRefused) options_.onRefused(reason);
  kj::throwFatalException(kj::Exception(kj::Exception::Type::FAILED, __FILE__, __LINE__, kj::str(reason)));
}

size_t MessageStream::takeBuffered(std::byte* into, size_t bytes) {
  size_t taken = std::min(bytes, readAheadEnd_ - readAheadBegin_);
  std::memcpy(into, readAhead_.begin() + readAheadBegin_, taken);
  readAheadBegin_ += taken;
  return taken;
}

kj::Promise<void> MessageStream::readInto(std::byte* into, size_t bytes) {
  size_t taken = takeBuffered(into, bytes);
  into += taken;
  bytes -= taken;
  if (bytes == 0) return kj::READY_NOW;
  bool direct = bytes >= readAhead_.size();
  // Answers must not wait for a slow operation: receiving a large message, and then processing it.
  if (direct) writer_.flush();
  auto read = direct ? receive(into, bytes) : receive(readAhead_.begin(), readAhead_.size());
  return read.then([this, into, bytes, direct](size_t got) -> kj::Promise<void> {
    if (got == 0) {
      kj::throwFatalException(KJ_EXCEPTION(DISCONNECTED, "the connection ended within a message"));
    }
    receivedBytes_ += got;
    if (direct) return got == bytes ? kj::READY_NOW : readInto(into + got, bytes - got);
    readAheadBegin_ = 0;
    readAheadEnd_ = got;
    return readInto(into, bytes);
  });
}

kj::Promise<size_t> MessageStream::receive(std::byte* into, size_t bytes) {
  if (options_.descriptors == nullptr || !options_.takeDescriptors) {
    return stream_.tryRead(into, 1, bytes);
  }
  auto fds = kj::heapArray<kj::AutoCloseFd>(kDescriptorsMax);
  auto read = options_.descriptors->tryReadWithFds(into, 1, bytes, fds.begin(), fds.size());
  return read.then([this, fds = kj::mv(fds)](kj::AsyncCapabilityStream::ReadResult got) mutable {
    for (size_t i = 0; i < got.capCount && received_.size() < kDescriptorsMax; i++) {
      received_.push_back({receivedBytes_ + got.byteCount, kj::mv(fds[i])});
    }
    return got.byteCount;
  });
}

kj::ArrayPtr<kj::AutoCloseFd> MessageStream::takeDescriptors(kj::ArrayPtr<kj::AutoCloseFd> space) {
  const uint64_t consumed = receivedBytes_ - (readAheadEnd_ - readAheadBegin_);
  size_t taken = 0;
  for (; !received_.empty() && received_.front().end <= consumed; received_.pop_front()) {
    if (taken < space.size()) space[taken++] = kj::mv(received_.front().fd);
  }
  return space.slice(0, taken);
}

kj::Promise<void> MessageStream::inTime(const Incoming& message, kj::Promise<void> read) {
  if (options_.readTimeout == 0 * kj::SECONDS) return read;
  return timer_.atTime(message.deadline)
      .then([this] { refuse("an incoming message was not complete within limits.read_timeout_ms"); })
      .exclusiveJoin(kj::mv(read));
}

kj::Promise<kj::Maybe<capnp::MessageReaderAndFds>> MessageStream::tryReadMessage(
    kj::ArrayPtr<kj::AutoCloseFd> fdSpace, capnp::ReaderOptions options, kj::ArrayPtr<word> scratch) {
  if (options_.mayRead && !options_.mayRead()) {
    // Polled, because the network's queue gives no notice when it shrinks.
    return timer_.afterDelay(kMayReadPoll).then([this, fdSpace, options, scratch] {
      return tryReadMessage(fdSpace, options, scratch);
    });
  }
  return kj::evalNow([&]() -> kj::Promise<Read> {
           if (readAheadBegin_ != readAheadEnd_) return readNext(fdSpace, options);
           // No deadline for this read: an idle connection is not an error.
           return receive(readAhead_.begin(), readAhead_.size())
               .then([this, fdSpace, options](size_t got) -> kj::Promise<Read> {
                 receivedBytes_ += got;
                 readAheadBegin_ = 0;
                 readAheadEnd_ = got;
                 if (got > 0) return readNext(fdSpace, options);
                 ended_ = true;
                 return Read(nullptr);
               });
         })
      .catch_([this](kj::Exception&& exception) -> kj::Promise<Read> {
        ended_ = true;
        return kj::mv(exception);
      });
}

kj::Promise<MessageStream::Read> MessageStream::readNext(kj::ArrayPtr<kj::AutoCloseFd> fdSpace,
                                                         capnp::ReaderOptions options) {
  auto message = kj::heap<Incoming>(options);
  if (options_.spinner) options_.spinner->touch();
  if (takeWhole(*message)) return handOver(kj::mv(message), fdSpace);
  auto& incoming = *message;
  incoming.deadline = timer_.now() + options_.readTimeout;
  return inTime(incoming, readTable(incoming))
      .then([this, &incoming] { return admit(incoming); })
      .then([this, fdSpace, message = kj::mv(message)]() mutable -> Read {
        return handOver(kj::mv(message), fdSpace);
      });
}

MessageStream::Read MessageStream::handOver(kj::Own<Incoming> message,
                                            kj::ArrayPtr<kj::AutoCloseFd> fdSpace) {
  checkKind(*message);
  const auto first = message->getSegment(0);
  std::memset(newest_, 0, sizeof newest_);
  std::memcpy(newest_, first.begin(), std::min(sizeof newest_, first.size() * sizeof(word)));
  return capnp::MessageReaderAndFds{kj::mv(message), takeDescriptors(fdSpace)};
}

bool MessageStream::takeWhole(Incoming& message) {
  const std::byte* at = readAhead_.begin() + readAheadBegin_;
  const size_t there = readAheadEnd_ - readAheadBegin_;
  if (there < sizeof message.head) return false;
  std::memcpy(message.head, at, sizeof message.head);
  if (message.head[0] >= kSegmentsMax) return false;  // readTable() refuses it
  const size_t tableBytes = message.tableLength() * sizeof(uint32_t);
  if (there < sizeof message.head + tableBytes) return false;
  message.table = kj::heapArray<uint32_t>(message.tableLength());
  std::memcpy(message.table.begin(), at + sizeof message.head, tableBytes);
  const size_t left = there - sizeof message.head - tableBytes;
  if (message.countWords() > left / sizeof(word)) return false;
  message.totalWords = message.countWords();
  if (!takeBudget(message)) return false;
  readAheadBegin_ += sizeof message.head + tableBytes;
  measure(message);
  message.laidOut = kj::heapArray<kj::ArrayPtr<const word>>(message.segmentCount());
  message.buffer = pool_->take(message.totalWords * sizeof(word));
  message.layOut(0, 0);
  takeBuffered(message.buffer.data(), message.totalWords * sizeof(word));
  return true;
}

kj::Promise<void> MessageStream::readTable(Incoming& message) {
  return readInto(reinterpret_cast<std::byte*>(message.head), sizeof message.head).then([this, &message] {
    if (message.head[0] >= kSegmentsMax) refuse("not a Cap'n Proto message (segment count)");
    if (message.segmentCount() == 1) return kj::Promise<void>(kj::READY_NOW);
    message.table = kj::heapArray<uint32_t>(message.tableLength());
    return readInto(reinterpret_cast<std::byte*>(message.table.begin()),
                    message.table.size() * sizeof(uint32_t));
  });
}

void MessageStream::measure(Incoming& message) {
  message.totalWords = message.countWords();
  if (message.totalWords > options_.messageBytesMax / sizeof(word)) {
    refuse(kj::str("a message of ", message.totalWords * sizeof(word), " bytes; limits.message_bytes is ",
                   options_.messageBytesMax));
  }
}

bool MessageStream::takeBudget(Incoming& message) {
  if (!options_.budget) return true;
  const uint64_t bytes = message.memoryBytes();
  auto lease = unbudgeted_->tryTake(bytes);
  message.counts = !lease;
  if (!lease) lease = options_.budget->tryTake(bytes);
  if (lease) message.lease = std::move(*lease);
  return lease.has_value();
}

kj::Promise<void> MessageStream::admit(Incoming& message) {
  measure(message);
  const uint64_t bytes = message.totalWords * sizeof(word);
  const bool small = bytes <= kUnbudgetedBytes;
  if (small && takeBudget(message)) return inTime(message, readSegments(message));
  if (!options_.budget) return inTime(message, readSegments(message));
  message.begun = pool_->take(kUnbudgetedBytes);
  message.begunBytes = std::min(bytes, kUnbudgetedBytes);
  return inTime(message, readInto(message.begun.data(), message.begunBytes))
      .then([this, &message]() -> kj::Promise<void> {
        if (takeBudget(message)) return inTime(message, readSegments(message));
        if (options_.onBudgetSpent) options_.onBudgetSpent();
        return waitForBudget(message);
      });
}

kj::Promise<void> MessageStream::waitForBudget(Incoming& message) {
  waitsForBudget_ = true;
  // No deadline: the wait is not the peer's fault.
  return options_.budget->take(message.memoryBytes()).then([this, &message](ByteBudget::Lease lease) {
    waitsForBudget_ = false;
    message.lease = std::move(lease);
    message.deadline = timer_.now() + options_.readTimeout;
    return inTime(message, readSegments(message));
  });
}

kj::Promise<void> MessageStream::readSegments(Incoming& message) {
  uint32_t count = message.segmentCount();
  uint32_t large = 0;
  for (uint32_t i = 1; i < count && large == 0; i++) {
    if (message.sizeOf(i) >= kPlaceWordsMin) large = i;
  }
  message.laidOut = kj::heapArray<kj::ArrayPtr<const word>>(count);
  if (options_.placer && large != 0) return readPlaced(message, large);
  message.buffer = pool_->take(message.totalWords * sizeof(word));
  message.layOut(0, 0);
  const size_t begun = message.begunBytes;
  if (begun > 0) std::memcpy(message.buffer.data(), message.begun.data(), begun);
  message.begun = BufferPool::Buffer();
  holdsBudgetForMore_ = message.counts;
  return readInto(message.buffer.data() + begun, message.totalWords * sizeof(word) - begun).then([this] {
    holdsBudgetForMore_ = false;
  });
}

kj::Promise<void> MessageStream::readPlaced(Incoming& message, uint32_t large) {
  uint64_t restWords = message.totalWords - message.sizeOf(large);
  message.buffer = pool_->take(restWords * sizeof(word));
  message.layOut(0, 0, large);
  return readInto(message.at(0), message.sizeOf(0) * sizeof(word)).then([this, &message, large, restWords] {
    kj::ArrayPtr<const word> segments[1] = {message.getSegment(0)};
    capnp::SegmentArrayMessageReader envelope(kj::arrayPtr(segments, 1));
    auto destination = options_.placer(envelope.getRoot<capnp::rpc::Message>(), message.sizeOf(large));
    message.next = 1;
    if (destination != nullptr) {
      KJ_ASSERT(destination.size() == message.sizeOf(large));
      message.place(large, destination);
      return readRest(message);
    }
    // The bytes have no destination: move them into a buffer that holds the whole message.
    auto whole = pool_->take(message.totalWords * sizeof(word));
    std::memcpy(whole.data(), message.buffer.data(), restWords * sizeof(word));
    message.buffer = kj::mv(whole);
    message.layOut(0, 0);
    return readRest(message);
  });
}

kj::Promise<void> MessageStream::readRest(Incoming& message) {
  if (message.next >= message.segmentCount()) return kj::READY_NOW;
  uint32_t segment = message.next++;
  return readInto(message.at(segment), message.sizeOf(segment) * sizeof(word)).then([this, &message] {
    return readRest(message);
  });
}

kj::Promise<void> MessageStream::writeMessage(kj::ArrayPtr<const int> fds,
                                              kj::ArrayPtr<const kj::ArrayPtr<const word>> segments) {
  if (options_.spinner) options_.spinner->touch();
  return writer_.write(fds, segments);
}

kj::Promise<void> MessageStream::writeMessages(
    kj::ArrayPtr<kj::ArrayPtr<const kj::ArrayPtr<const word>>> messages) {
  if (messages.size() == 0) return kj::READY_NOW;
  return writer_.write(nullptr, messages[0]).then([this, rest = messages.slice(1, messages.size())] {
    return writeMessages(rest);
  });
}

kj::Maybe<int> MessageStream::getSendBufferSize() {
  int bytes = 0;
  kj::uint length = sizeof bytes;
  stream_.getsockopt(SOL_SOCKET, SO_SNDBUF, &bytes, &length);
  return bytes;
}

kj::Promise<void> MessageStream::end() { return writer_.end(); }

Socket wrapSocket(kj::LowLevelAsyncIoProvider& provider, int fd) {
  constexpr kj::uint kFlags = kj::LowLevelAsyncIoProvider::TAKE_OWNERSHIP |
                              kj::LowLevelAsyncIoProvider::ALREADY_CLOEXEC |
                              kj::LowLevelAsyncIoProvider::ALREADY_NONBLOCK;
  if (!canPassDescriptors(fd)) return {provider.wrapSocketFd(fd, kFlags), nullptr};
  auto stream = provider.wrapUnixSocketFd(fd, kFlags);
  auto& descriptors = *stream;
  return {kj::mv(stream), &descriptors};
}

}  // namespace psd::wire

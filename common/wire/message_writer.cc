#include "common/wire/message_writer.h"

#include <cstring>
#include <utility>

#include <kj/vector.h>

namespace psd::wire {
namespace {

using capnp::word;

// Copying this many bytes is cheaper than a separate system call.
constexpr size_t kSmallBytesMax = 2048;
// After this time without a write the next small message is sent at once. In a turn of the event loop that
// also applies slices, a peer that waited for the end of the turn would be idle. About the cost of a write.
constexpr kj::Duration kGatherTime = 8 * kj::MICROSECONDS;
// Beyond this many gathered bytes small messages wait with their caller, which bounds and counts them.
constexpr size_t kGatheredBytesMax = 16u << 10;

/// Length of the table in front of a message: segments − 1, the words of each, padding to a whole word.
size_t tableLength(MessageWriter::Segments segments) { return (segments.size() + 2) & ~size_t{1}; }

void writeTable(MessageWriter::Segments segments, uint32_t* table) {
  table[0] = static_cast<uint32_t>(segments.size() - 1);
  for (size_t i = 0; i < segments.size(); i++) table[i + 1] = static_cast<uint32_t>(segments[i].size());
  if (segments.size() % 2 == 0) table[segments.size() + 1] = 0;
}

size_t framedBytes(MessageWriter::Segments segments) {
  size_t bytes = tableLength(segments) * sizeof(uint32_t);
  for (const auto& segment : segments) bytes += segment.size() * sizeof(word);
  return bytes;
}

}  // namespace

MessageWriter::MessageWriter(kj::AsyncIoStream& stream, kj::AsyncCapabilityStream* descriptors,
                             kj::Timer& timer, const kj::MonotonicClock& clock,
                             std::function<void()> onFailed)
    : stream_(stream),
      descriptors_(descriptors),
      timer_(timer),
      clock_(clock),
      onFailed_(std::move(onFailed)),
      lastWrite_(clock.now()) {
  gathered_.reserve(kGatheredBytesMax);
  writing_.reserve(kGatheredBytesMax);
}

kj::Promise<void> MessageWriter::write(kj::ArrayPtr<const int> fds, Segments segments) {
  KJ_IF_MAYBE (failure, failure_) {
    return kj::cp(*failure);
  }
  const bool passing = fds.size() > 0 && descriptors_ != nullptr;
  const size_t bytes = framedBytes(segments);
  const bool small = !passing && bytes <= kSmallBytesMax;
  if (small && gathered_.size() + bytes <= kGatheredBytesMax) {
    gather(segments);
    return kj::READY_NOW;
  }
  // Descriptors travel with the first byte of a write, which must belong to their message.
  if (small || (passing && !gathered_.empty())) flush();
  if (busy_) return whenIdle().then([this, fds, segments] { return write(fds, segments); });
  return writeLarge(passing ? fds : nullptr, segments);
}

void MessageWriter::gather(Segments segments) {
  const auto pins = takePins(segments);  // held until the bytes are copied
  const size_t at = gathered_.size();
  gathered_.resize(at + framedBytes(segments));
  std::byte* out = gathered_.data() + at;
  writeTable(segments, reinterpret_cast<uint32_t*>(out));  // every message is whole words: aligned
  out += tableLength(segments) * sizeof(uint32_t);
  for (const auto& segment : segments) {
    if (segment.size() == 0) continue;
    std::memcpy(out, segment.begin(), segment.size() * sizeof(word));
    out += segment.size() * sizeof(word);
  }
  gatheredMessages_++;
  schedule();
}

void MessageWriter::schedule() {
  if (busy_ || gathered_.empty()) return;
  if (clock_.now() - lastWrite_ >= kGatherTime) {
    scheduled_ = false;
    flushing_ = writeGathered().eagerlyEvaluate(nullptr);
  } else if (!scheduled_) {
    scheduled_ = true;
    flushing_ = kj::evalLast([this] {
                  scheduled_ = false;
                  return writeGathered();
                }).eagerlyEvaluate(nullptr);
  }
}

void MessageWriter::flush() {
  if (!scheduled_) return;
  scheduled_ = false;
  flushing_ = writeGathered().eagerlyEvaluate(nullptr);
}

kj::Promise<void> MessageWriter::writeGathered() {
  if (busy_ || gathered_.empty()) return kj::READY_NOW;
  beginWriting();
  // kj's sockets throw if a write fails at once.
  return kj::evalNow([this] { return stream_.write(writing_.data(), writing_.size()); })
      .then(
          [this] {
            endWriting();
            return writeGathered();
          },
          [this](kj::Exception&& exception) -> kj::Promise<void> {
            failed(exception);
            // No caller waits for this write, so the failure must appear on the read side. If the connection
            // is already gone, the system refuses the abort, and the reader notices that itself.
            kj::runCatchingExceptions([this] { stream_.abortRead(); });
            return kj::READY_NOW;
          });
}

kj::Promise<void> MessageWriter::writeLarge(kj::ArrayPtr<const int> fds, Segments segments) {
  struct Outgoing {
    Pins pins;
    kj::Array<uint32_t> table;
    kj::Vector<kj::ArrayPtr<const kj::byte>> pieces;
  };
  auto outgoing = kj::heap<Outgoing>();
  outgoing->pins = takePins(segments);
  outgoing->table = kj::heapArray<uint32_t>(tableLength(segments));
  writeTable(segments, outgoing->table.begin());
  beginWriting();
  auto& pieces = outgoing->pieces;
  const auto* lead = reinterpret_cast<const kj::byte*>(writing_.data());
  if (!writing_.empty()) pieces.add(kj::arrayPtr(lead, writing_.size()));
  pieces.add(outgoing->table.asBytes());
  for (const auto& segment : segments) {
    if (segment.size() > 0) pieces.add(segment.asBytes());
  }
  auto written = kj::evalNow([&] {
    return fds.size() == 0 ? stream_.write(pieces)
                           : descriptors_->writeWithFds(pieces[0], pieces.slice(1, pieces.size()), fds);
  });
  return written.attach(kj::mv(outgoing))
      .then(
          [this]() -> kj::Promise<void> {
            endWriting();
            schedule();
            return kj::READY_NOW;
          },
          [this](kj::Exception&& exception) -> kj::Promise<void> {
            failed(exception);
            return kj::mv(exception);
          });
}

void MessageWriter::beginWriting() {
  std::swap(gathered_, writing_);
  writingMessages_ = std::exchange(gatheredMessages_, 0);
  writingSince_ = timer_.now();
  lastWrite_ = clock_.now();
  busy_ = true;
}

void MessageWriter::endWriting() {
  writing_.clear();
  writingMessages_ = 0;
  busy_ = false;
  KJ_IF_MAYBE (idle, idle_) {
    (*idle)->fulfill();
  }
  idle_ = nullptr;
}

void MessageWriter::failed(const kj::Exception& exception) {
  failure_ = kj::cp(exception);
  gathered_.clear();
  gatheredMessages_ = 0;
  endWriting();
  onFailed_();
}

kj::Promise<void> MessageWriter::whenIdle() {
  if (!busy_) return kj::READY_NOW;
  auto idle = kj::newPromiseAndFulfiller<void>();
  idle_ = kj::mv(idle.fulfiller);
  return kj::mv(idle.promise);
}

kj::Promise<void> MessageWriter::end() {
  flush();
  if (busy_) return whenIdle().then([this] { return end(); });
  if (failure_ == nullptr) stream_.shutdownWrite();
  return kj::READY_NOW;
}

kj::Duration MessageWriter::waitTime() const {
  return writing_.empty() ? 0 * kj::NANOSECONDS : timer_.now() - writingSince_;
}

void MessageWriter::pin(const void* begin, std::shared_ptr<const void> owner) {
  pins_.emplace(begin, std::move(owner));
}

MessageWriter::Pins MessageWriter::takePins(Segments segments) {
  Pins taken;
  if (pins_.empty()) return taken;
  for (const auto& segment : segments) {
    const auto pin = pins_.find(segment.begin());
    if (pin == pins_.end()) continue;
    taken.push_back(std::move(pin->second));
    pins_.erase(pin);
  }
  return taken;
}

}  // namespace psd::wire

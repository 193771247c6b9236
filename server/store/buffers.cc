#include "server/store/buffers.h"

#include <algorithm>
#include <utility>

namespace psd {
namespace {

// No pull has such a number: an answer with buffers begins with it where one with pulled values has the
// pull's, by which a client recognizes values while it reads them.
constexpr uint64_t kFirstSet = 1ull << 63;

}  // namespace

Buffers::Current Buffers::get() const {
  const std::lock_guard hold(mutex_);
  return current_;
}

void Buffers::set(std::shared_ptr<const BufferSet> next, ByteBudget::Lease space) {
  const std::lock_guard hold(mutex_);
  if (current_.set && std::ranges::equal(current_.set->file(), next->file())) return;
  current_ = {std::move(next), std::max(kFirstSet, current_.number + 1)};
  if (log_) logged_ = log_->append(*current_.set, std::move(space));
}

kj::Promise<void> Buffers::replace(std::shared_ptr<const BufferSet> next) {
  std::shared_ptr<UpdateLog> log;
  {
    const std::lock_guard hold(mutex_);
    log = log_;
  }
  auto room = log ? log->space(next->file().size()) : kj::Promise<ByteBudget::Lease>(ByteBudget::Lease());
  return room.then([this, log, next = std::move(next)](ByteBudget::Lease space) mutable -> kj::Promise<void> {
    set(std::move(next), std::move(space));
    const std::lock_guard hold(mutex_);
    return log_ && logged_ != 0 ? log_->whenDurable(logged_) : kj::Promise<void>(kj::READY_NOW);
  });
}

void Buffers::setLog(std::shared_ptr<UpdateLog> log) {
  const std::lock_guard hold(mutex_);
  log_ = std::move(log);
  logged_ = 0;
}

}  // namespace psd

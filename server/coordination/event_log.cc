#include "server/coordination/event_log.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/text/text.h"
#include "common/types/unix_time.h"

namespace psd {

void EventLog::add(std::string_view kind, std::string_view text, std::string_view by) {
  const bool checkpoint = kind == kCheckpoint;
  std::deque<DaemonEvent>& events = checkpoint ? checkpoints_ : events_;
  if (events.size() == (checkpoint ? kCheckpointsMax : kEventsMax)) events.pop_front();
  events.push_back({++newest_, unixTimeNow(), std::string(kind), oneLine(text, kTextBytesMax),
                    oneLine(by, kTextBytesMax)});
  auto pair = kj::newPromiseAndFulfiller<void>();
  auto due = std::exchange(pair_.fulfiller, kj::mv(pair.fulfiller));
  added_ = pair.promise.fork();
  due->fulfill();
}

DaemonEvents EventLog::after(uint64_t number) const {
  DaemonEvents found;
  const auto newer = [number](const DaemonEvent& event) { return event.number > number; };
  std::ranges::copy_if(events_, std::back_inserter(found.events), newer);
  std::ranges::copy_if(checkpoints_, std::back_inserter(found.events), newer);
  std::ranges::sort(found.events, {}, &DaemonEvent::number);
  return found;
}

kj::Promise<DaemonEvents> EventLog::nextAfter(uint64_t number) {
  if (newest_ > number) return after(number);
  return added_.addBranch().then([this, number] { return nextAfter(number); });
}

}  // namespace psd

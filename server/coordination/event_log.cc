#include "server/coordination/event_log.h"

#include <utility>

#include "common/text/text.h"
#include "common/types/unix_time.h"

namespace psd {

void EventLog::add(std::string_view kind, std::string_view text, std::string_view by) {
  if (events_.size() == kEventsMax) events_.pop_front();
  events_.push_back({++newest_, unixTimeNow(), std::string(kind), oneLine(text, kTextBytesMax),
                     oneLine(by, kTextBytesMax)});
  auto pair = kj::newPromiseAndFulfiller<void>();
  auto due = std::exchange(pair_.fulfiller, kj::mv(pair.fulfiller));
  added_ = pair.promise.fork();
  due->fulfill();
}

DaemonEvents EventLog::after(uint64_t number) const {
  DaemonEvents found;
  for (const DaemonEvent& event : events_) {
    if (event.number > number) found.events.push_back(event);
  }
  return found;
}

kj::Promise<DaemonEvents> EventLog::nextAfter(uint64_t number) {
  if (newest_ > number) return after(number);
  return added_.addBranch().then([this, number] { return nextAfter(number); });
}

}  // namespace psd

#include "server/http/live_feed.h"

#include <utility>

#include <fmt/format.h>

#include "common/config/json_file.h"

namespace psd {

using Json = nlohmann::ordered_json;

std::shared_ptr<const std::string> LiveFeed::eventText(std::string_view kind, const Json& data) const {
  struct Counted {
    std::shared_ptr<const void> room;
    std::string text;
  };
  std::string text = fmt::format("event: {}\nid: {}\ndata: {}\n\n", kind, tick_, jsonText(data));
  auto room = roomFor_(text.size());
  if (room == nullptr) return nullptr;
  const auto counted = std::make_shared<const Counted>(Counted{std::move(room), std::move(text)});
  return {counted, &counted->text};
}

Json mergePatch(const Json& before, const Json& next) {
  if (!before.is_object() || !next.is_object()) return next;
  Json patch = Json::object();
  for (const auto& [key, value] : before.items()) {
    if (!next.contains(key)) patch[key] = nullptr;
  }
  for (const auto& [key, value] : next.items()) {
    const auto old = before.find(key);
    if (old == before.end()) {
      patch[key] = value;
    } else if (*old != value) {
      patch[key] = mergePatch(*old, value);
    }
  }
  return patch;
}

void LiveFeed::tick(Json now) {
  const bool follows = !now_.is_null() && !now.is_null();
  tick_++;
  whole_ = nullptr;
  delta_ = follows ? eventText("delta", mergePatch(now_, now)) : nullptr;
  now_ = std::move(now);
  auto pair = kj::newPromiseAndFulfiller<void>();
  auto due = std::exchange(pair_.fulfiller, kj::mv(pair.fulfiller));
  ticked_ = pair.promise.fork();
  due->fulfill();
}

kj::Promise<LiveFeed::Document> LiveFeed::next(uint64_t tick) {
  return ticked_.addBranch().then([this, tick]() -> kj::Promise<Document> {
    // Null if this watcher joined after the tick was prepared.
    if (now_.is_null()) return next(tick);
    return documentAfter(tick);
  });
}

LiveFeed::Document LiveFeed::documentAfter(uint64_t tick) {
  if (delta_ && tick != 0 && tick + 1 == tick_) return {tick_, delta_};
  if (!whole_) whole_ = eventText("whole", now_);
  return {tick_, whole_};
}

}  // namespace psd

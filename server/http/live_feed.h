#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include <kj/async.h>
#include <nlohmann/json.hpp>

#include "server/http/caller.h"

namespace psd {

/// What those who follow a daemon are sent: with each tick one document of what has changed, which all of
/// them share, or the whole for who lacks the one before. Documents are events of a stream
/// (text/event-stream). Owned by one thread.
class LiveFeed {
 public:
  struct Document {
    uint64_t tick = 0;
    std::shared_ptr<const std::string> text;
  };

  using RoomFor = std::function<std::shared_ptr<const void>(uint64_t bytes)>;
  /// `roomFor` counts the bytes of a document until its result is destroyed; null: there is no memory for it.
  explicit LiveFeed(RoomFor roomFor) : roomFor_(std::move(roomFor)) {}

  size_t watchers = 0;  ///< streams that follow now; their owner counts them

  /// What there is to say now; an object. Null: nobody follows, so nothing was made.
  void tick(nlohmann::ordered_json now);
  /// The document after that of `tick`, at the next tick; 0: the caller has none yet. Without text: there is
  /// no memory for it.
  kj::Promise<Document> next(uint64_t tick);

 private:
  Document documentAfter(uint64_t tick);
  std::shared_ptr<const std::string> eventText(std::string_view kind,
                                               const nlohmann::ordered_json& data) const;

  const RoomFor roomFor_;

  nlohmann::ordered_json now_;
  uint64_t tick_ = 0;
  std::shared_ptr<const std::string> whole_, delta_;  // null: not made
  kj::PromiseFulfillerPair<void> pair_ = kj::newPromiseAndFulfiller<void>();
  kj::ForkedPromise<void> ticked_ = pair_.promise.fork();
};

/// The feed of administrators, and that of the others, which has no events. Owned by one thread.
struct LiveFeeds {
  explicit LiveFeeds(const LiveFeed::RoomFor& roomFor) : ofAdmins(roomFor), ofReaders(roomFor) {}
  LiveFeed& of(HttpRole role) { return role >= HttpRole::admin ? ofAdmins : ofReaders; }

  LiveFeed ofAdmins, ofReaders;
};

/// The JSON Merge Patch (RFC 7396) that makes `next` of `before`: an object with what differs. Values of
/// `next` that are null read as absent.
nlohmann::ordered_json mergePatch(const nlohmann::ordered_json& before, const nlohmann::ordered_json& next);

}  // namespace psd

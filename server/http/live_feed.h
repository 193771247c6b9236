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

/// The stream sent to watchers of a daemon: each tick produces one document with the changes, shared by all
/// watchers, or the whole document for those that lack the previous one. Documents are server-sent events
/// (text/event-stream). Owned by one thread.
class LiveFeed {
 public:
  struct Document {
    uint64_t tick = 0;
    std::shared_ptr<const std::string> text;
  };

  using Reserve = std::function<std::shared_ptr<const void>(uint64_t bytes)>;
  /// `reserve` reserves memory for a document until its result is destroyed; null if none is free.
  explicit LiveFeed(Reserve reserve) : roomFor_(std::move(reserve)) {}

  size_t watchers = 0;  ///< open streams; counted by their owner

  /// Publishes the current state, an object. Null: there are no watchers, so none was built.
  void tick(nlohmann::ordered_json now);
  /// The document after that of `tick`, at the next tick; 0: the caller has none yet. Has no text if memory
  /// is short.
  kj::Promise<Document> next(uint64_t tick);

 private:
  Document documentAfter(uint64_t tick);
  std::shared_ptr<const std::string> eventText(std::string_view kind,
                                               const nlohmann::ordered_json& data) const;

  const Reserve roomFor_;

  nlohmann::ordered_json now_;
  uint64_t tick_ = 0;
  std::shared_ptr<const std::string> whole_, delta_;  // null: not built
  kj::PromiseFulfillerPair<void> pair_ = kj::newPromiseAndFulfiller<void>();
  kj::ForkedPromise<void> ticked_ = pair_.promise.fork();
};

/// The feed of administrators, and that of readers, which has no events. Owned by one thread.
struct LiveFeeds {
  explicit LiveFeeds(const LiveFeed::Reserve& reserve) : ofAdmins(reserve), ofReaders(reserve) {}
  LiveFeed& of(HttpRole role) { return role >= HttpRole::admin ? ofAdmins : ofReaders; }

  LiveFeed ofAdmins, ofReaders;
};

/// The JSON Merge Patch (RFC 7396) that turns `before` into `next`: an object with the differences. Null
/// values in `next` read as absent.
nlohmann::ordered_json mergePatch(const nlohmann::ordered_json& before, const nlohmann::ordered_json& next);

}  // namespace psd

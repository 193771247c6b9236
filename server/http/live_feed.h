#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <kj/async.h>
#include <nlohmann/json.hpp>

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

  /// What there is to say now; an object. Null: nobody follows, so nothing was made.
  void tick(nlohmann::ordered_json now);
  /// The next tick's document for somebody whose newest one is of `tick`; 0: who has none.
  kj::Promise<Document> next(uint64_t tick);

 private:
  Document documentAfter(uint64_t tick);

  nlohmann::ordered_json now_;
  uint64_t tick_ = 0;
  std::shared_ptr<const std::string> whole_, delta_;  // null: not made
  kj::PromiseFulfillerPair<void> pair_ = kj::newPromiseAndFulfiller<void>();
  kj::ForkedPromise<void> ticked_ = pair_.promise.fork();
};

/// The JSON Merge Patch (RFC 7396) that makes `next` of `before`: an object with what differs. Values of
/// `next` that are null read as absent.
nlohmann::ordered_json mergePatch(const nlohmann::ordered_json& before, const nlohmann::ordered_json& next);

}  // namespace psd

#include "test/support/memory_engine.h"

#include <utility>

namespace psd::testing {
namespace {

Error noAnswer() { return {ErrorCode::unavailable, "the engine in memory does not answer"}; }

bool takeOne(size_t& count) {
  if (count == 0) return false;
  count--;
  return true;
}

}  // namespace

Stored MemoryRegister::read(const std::string& key) const {
  const auto found = keys_.find(key);
  return found == keys_.end() ? Stored{} : found->second;
}

Swapped MemoryRegister::swap(const std::string& key, uint64_t expectedRevision, const std::string& text) {
  const Stored now = read(key);
  if (now.revision != expectedRevision) return {now.revision != 0 && now.text == text, now};
  put(key, text);
  return {true, read(key)};
}

void MemoryRegister::put(const std::string& key, const std::string& text) {
  keys_[key] = {text, ++revision_};
  changed();
}

void MemoryRegister::erase(const std::string& key) {
  revision_ += keys_.erase(key);
  changed();
}

void MemoryRegister::lose() {
  keys_.clear();
  revision_ = 0;
  changed();
}

kj::Promise<void> MemoryRegister::whenChanged() {
  auto pair = kj::newPromiseAndFulfiller<void>();
  waiting_.push_back(kj::mv(pair.fulfiller));
  return kj::mv(pair.promise);
}

void MemoryRegister::changed() {
  for (auto& waiting : std::exchange(waiting_, {})) waiting->fulfill();
}

void MemoryEngine::setAway(bool away) {
  away_ = away;
  trouble_.clear();  // a caller that waits for a change receives it again
  if (away) return;
  for (auto& waiting : std::exchange(absent_, {})) waiting->fulfill();
}

void MemoryEngine::deliverLate() {
  for (const Late& late : std::exchange(late_, {}))
    register_.swap(late.key, late.expectedRevision, late.text);
}

void MemoryEngine::releaseAnswers() {
  holding_ = false;
  for (auto& held : std::exchange(held_, {})) held->fulfill();
}

template <class T>
kj::Promise<Result<T>> MemoryEngine::answer(Result<T> result) {
  trouble_ = result.ok() ? "" : result.message();
  if (!holding_) return kj::mv(result);
  auto pair = kj::newPromiseAndFulfiller<void>();
  held_.push_back(kj::mv(pair.fulfiller));
  return pair.promise.then([result = std::move(result)]() mutable { return std::move(result); });
}

kj::Promise<Result<Stored>> MemoryEngine::read(std::string key) {
  if (away_) return answer<Stored>(noAnswer());
  return answer<Stored>(register_.read(key));
}

kj::Promise<Result<Swapped>> MemoryEngine::swap(std::string key, uint64_t expectedRevision,
                                                std::string text) {
  swaps_++;
  if (text.size() > kEngineTextBytesMax) {
    return Result<Swapped>(ErrorCode::invalidArgument, key + ": the text is too long");
  }
  if (away_ || takeOne(lostRequests_)) return answer<Swapped>(noAnswer());
  if (takeOne(lateRequests_)) {
    late_.push_back({std::move(key), expectedRevision, std::move(text)});
    return answer<Swapped>(noAnswer());
  }
  const Swapped swapped = register_.swap(key, expectedRevision, text);
  if (takeOne(lostAnswers_)) return answer<Swapped>(noAnswer());
  return answer<Swapped>(swapped);
}

kj::Promise<Result<Stored>> MemoryEngine::changed(std::string key, uint64_t knownRevision) {
  watches_++;
  kj::Promise<void> next = nullptr;
  if (away_) {
    auto pair = kj::newPromiseAndFulfiller<void>();
    absent_.push_back(kj::mv(pair.fulfiller));
    next = kj::mv(pair.promise);
  } else {
    Stored now = register_.read(key);
    if (now.revision != knownRevision) {
      trouble_.clear();
      return Result<Stored>(std::move(now));
    }
    next = register_.whenChanged();
  }
  return next.then([this, key = std::move(key), knownRevision] { return changed(key, knownRevision); });
}

std::string MemoryEngine::trouble() const { return away_ ? noAnswer().message : trouble_; }

}  // namespace psd::testing

#include "server/publish/version_mirror.h"

#include <algorithm>
#include <span>
#include <utility>

#include "server/checkpoint/file_change.h"

namespace psd {
namespace {

using Kind = FileChange::Kind;

constexpr uint64_t kPieceBytes = 1u << 20;

}  // namespace

Status VersionMirror::send(Env& env, const std::string& folder, const std::string& name) {
  if (!replicator_->followed()) return {};  // a later standby gets it with its image
  PSD_ASSIGN_OR_RETURN(const auto file, env.open(folder + "/" + name));
  std::vector<std::byte> piece;
  for (uint64_t at = 0; at < file->size(); at += piece.size()) {
    piece.resize(std::min(kPieceBytes, file->size() - at));
    PSD_RETURN_IF_ERROR(file->read(at, piece));
    PSD_RETURN_IF_ERROR(await([this, &piece] { return replicator_->space(piece.size()).ignoreResult(); }));
    replicator_->append(FileChange{Kind::append, name, at, piece});
  }
  commit(name, file->size());
  return {};
}

uint64_t VersionMirror::sendText(const std::string& name, std::string_view text) {
  replicator_->append(FileChange{Kind::append, name, 0, std::as_bytes(std::span(text))});
  return commit(name, text.size());
}

void VersionMirror::remove(const std::string& name) {
  replicator_->append(FileChange{Kind::remove, name, 0, {}});
}

uint64_t VersionMirror::commit(const std::string& name, uint64_t bytes) {
  const uint64_t number = replicator_->append(FileChange{Kind::commit, name, bytes, {}});
  const std::lock_guard hold(mutex_);
  newest_ = std::max(newest_, number);
  return number;
}

Status VersionMirror::wait(uint64_t number) {
  return await([this, number] {
    uint64_t newest = number;
    if (newest == 0) {
      const std::lock_guard hold(mutex_);
      newest = newest_;
    }
    return newest == 0 ? kj::Promise<void>(kj::READY_NOW) : replicator_->whenDurable(newest);
  });
}

Status VersionMirror::await(const std::function<kj::Promise<void>()>& start) {
  const Status unsent(ErrorCode::shuttingDown, "the daemon ends, and its standby has not received it");
  kj::EventLoop loop;
  kj::WaitScope scope(loop);
  auto end = kj::newPromiseAndCrossThreadFulfiller<void>();
  decltype(begun_)::iterator begun;
  {
    const std::lock_guard hold(mutex_);
    if (ended_) return unsent;
    std::erase_if(waits_, [](const auto& each) { return !each->isWaiting(); });
    waits_.push_back(kj::mv(end.fulfiller));
    begun = begun_.insert(std::chrono::steady_clock::now());
  }
  bool done = false;
  start().then([&done] { done = true; }).exclusiveJoin(kj::mv(end.promise)).wait(scope);
  const std::lock_guard hold(mutex_);
  begun_.erase(begun);
  return done ? Status() : unsent;
}

std::chrono::milliseconds VersionMirror::waited() const {
  const std::lock_guard hold(mutex_);
  if (begun_.empty()) return {};
  return std::chrono::ceil<std::chrono::milliseconds>(std::chrono::steady_clock::now() - *begun_.begin());
}

void VersionMirror::end() {
  std::vector<kj::Own<kj::CrossThreadPromiseFulfiller<void>>> waits;
  {
    const std::lock_guard hold(mutex_);
    ended_ = true;
    waits.swap(waits_);
  }
  for (auto& each : waits) each->fulfill();
}

}  // namespace psd

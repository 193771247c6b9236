#include "server/move/arriving_versions.h"

#include <algorithm>
#include <new>
#include <utility>

#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>

namespace psd {

Status ArrivingVersions::begin(uint64_t move) {
  if (move_ == move) return {};
  if (!host_.versions()) return {ErrorCode::notReady, "this daemon does not publish yet; try again"};
  PSD_RETURN_IF_ERROR(host_.versions()->mayArrive());
  move_ = move;
  dropFile();
  begun_ = std::make_shared<Status>();
  static_cast<void>(enqueue([begun = begun_, own = host_.config().daemons.partition()](
                                VersionStore& versions) { return *begun = versions.beginArrival(own); }));
  return {};
}

void ArrivingVersions::found(uint64_t move) {
  if (!host_.versions() || !host_.versions()->hideUncommitted()) return;
  move_ = move;
  begun_ = std::make_shared<Status>();
}

Status ArrivingVersions::image(std::span<const std::byte> bytes, uint64_t most) {
  const uint64_t has = file_.capacity(), needed = file_.size() + bytes.size();
  const uint64_t more = needed > has ? needed - has : 0, free = most - std::min(most, held_);
  if (more > free) {
    return {ErrorCode::overloaded,
            fmt::format("a published version from the other daemon needs more than limits.arriving_bytes "
                        "({}); psd set changes it",
                        host_.config().limits.arrivingBytes)};
  }
  try {
    if (more > 0) file_.reserve(needed + std::min(has / 2, free - more));
    held_ += file_.capacity() - has;
    file_.insert(file_.end(), bytes.begin(), bytes.end());
  } catch (const std::bad_alloc&) {
    return {ErrorCode::overloaded, "out of memory for a published version from the other daemon"};
  }
  return {};
}

void ArrivingVersions::dropFile() { held_ -= std::exchange(file_, {}).capacity(); }

kj::Promise<Status> ArrivingVersions::imageDone(uint64_t oldest) {
  const auto file = std::make_shared<const std::vector<std::byte>>(std::exchange(file_, {}));
  const auto arrive = [file, oldest, begun = begun_](VersionStore& versions) {
    return begun->ok() ? versions.arrive(*file, oldest) : *begun;
  };
  return enqueue(arrive).attach(kj::defer([this, bytes = file->capacity()] { held_ -= bytes; }));
}

kj::Promise<Status> ArrivingVersions::install(VersionsContinuation continuation) {
  if (move_ == 0) return Status(ErrorCode::notReady, "the published versions of this move were removed");
  return enqueue([continuation = std::move(continuation), begun = begun_](VersionStore& versions) {
    return begun->ok() ? versions.endArrival(continuation) : *begun;
  });
}

kj::Promise<Status> ArrivingVersions::cancel() {
  dropFile();
  move_ = 0;  // the versions of a move that begins during the removal arrive after it
  if (!begun_) return Status();
  auto cancelled = enqueue([](VersionStore& versions) { return versions.cancelArrival(); })
                       .then([this, begun = begun_](Status status) {
                         if (!status.ok())
                           spdlog::warn("versions of an aborted move are left: {}", status.message());
                         if (status.ok() && begun_ == begun) begun_ = nullptr;
                         return status;
                       })
                       .fork();
  queue_ = cancelled.addBranch().ignoreResult().fork();
  return cancelled.addBranch();
}

void ArrivingVersions::show() {
  move_ = 0;
  begun_ = nullptr;
  if (host_.versions()) host_.versions()->show();
}

kj::Promise<Status> ArrivingVersions::enqueue(std::function<Status(VersionStore&)> work) {
  auto done = queue_.addBranch()
                  .then([this, work = std::move(work), versions = host_.versions()] {
                    return background_.tryRun<Status>([work, versions] { return work(*versions); });
                  })
                  .fork();
  queue_ = done.addBranch().ignoreResult().fork();
  return done.addBranch();
}

}  // namespace psd

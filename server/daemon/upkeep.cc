#include "server/daemon/upkeep.h"

#include <utility>

#include <spdlog/spdlog.h>

#include "common/os/disk_room.h"

namespace psd {
namespace {

std::vector<DiskStatus> measure(const std::vector<std::string>& folders) {
  std::vector<DiskStatus> disks;
  for (const std::string& folder : folders) {
    if (const auto room = diskRoom(folder)) disks.push_back({folder, room->free, room->size});
  }
  return disks;
}

}  // namespace

Upkeep::Upkeep(kj::Timer& timer, std::vector<std::string> folders, std::function<void()> daily)
    : timer_(timer), folders_(std::move(folders)), daily_(std::move(daily)), disks_(measure(folders_)) {
  const auto ended = [](kj::Exception&& exception) {
    spdlog::error("disks and certificates are no longer watched: {}", exception.getDescription().cStr());
  };
  if (!folders_.empty()) measuring_ = keepMeasuring().eagerlyEvaluate(ended);
  checking_ = keepChecking().eagerlyEvaluate(ended);
}

kj::Promise<void> Upkeep::keepMeasuring() {
  using Disks = std::vector<DiskStatus>;
  return timer_.afterDelay(kDiskInterval)
      .then([this] { return background_.run<Disks>([folders = folders_] { return measure(folders); }); })
      .then([this](Disks disks) { disks_ = std::move(disks); },
            [](kj::Exception&&) {})  // no thread now: tried again
      .then([this] { return keepMeasuring(); });
}

kj::Promise<void> Upkeep::keepChecking() {
  return timer_.afterDelay(kDailyInterval).then([this] {
    daily_();
    return keepChecking();
  });
}

}  // namespace psd

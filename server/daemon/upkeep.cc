#include "server/daemon/upkeep.h"

#include <utility>

#include <spdlog/spdlog.h>

#include "common/os/disk_room.h"
#include "common/os/host.h"

namespace psd {

Upkeep::Measured Upkeep::measure(const std::vector<std::string>& folders) {
  Measured now{.disks = {}, .descriptors = psd::openDescriptors()};
  for (const std::string& folder : folders) {
    if (const auto room = diskRoom(folder)) now.disks.push_back({folder, room->free, room->size});
  }
  return now;
}

Upkeep::Upkeep(kj::Timer& timer, std::vector<std::string> folders, std::function<void()> daily)
    : timer_(timer), folders_(std::move(folders)), daily_(std::move(daily)), measured_(measure(folders_)) {
  const auto ended = [](kj::Exception&& exception) {
    spdlog::error("disks, descriptors and certificates are no longer watched: {}",
                  exception.getDescription().cStr());
  };
  measuring_ = keepMeasuring().eagerlyEvaluate(ended);
  checking_ = keepChecking().eagerlyEvaluate(ended);
}

kj::Promise<void> Upkeep::keepMeasuring() {
  return timer_.afterDelay(kInterval)
      .then([this] { return background_.run<Measured>([folders = folders_] { return measure(folders); }); })
      .then([this](Measured now) { measured_ = std::move(now); },
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

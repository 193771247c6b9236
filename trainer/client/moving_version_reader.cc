#include "trainer/client/moving_version_reader.h"

#include <algorithm>

#include <fmt/format.h>

#include "common/text/text.h"
#include "trainer/client/other_daemons.h"

namespace psd {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

std::string textOf(const DaemonAddresses& daemons) {
  return joined(daemons, " ", [](const auto& addresses) { return joined(addresses, ","); });
}

}  // namespace

MovingVersionReader::MovingVersionReader(ClientOptions options, const FreshnessBound& bound)
    : options_(std::move(options)), bound_(bound) {
  options_.keepWaiting = [ended = interrupted_, keepWaiting = options_.keepWaiting] {
    return !*ended && (!keepWaiting || keepWaiting());
  };
}

Result<std::unique_ptr<VersionReader>> MovingVersionReader::connect(const ClientOptions& options,
                                                                    const FreshnessBound& bound) {
  std::unique_ptr<MovingVersionReader> reader(new MovingVersionReader(options, bound));
  PSD_ASSIGN_OR_RETURN(reader->reader_, connectToVersions(reader->options_, bound));
  return std::unique_ptr<VersionReader>(std::move(reader));
}

Status MovingVersionReader::follow(MovableVersionReader& left, const DaemonAddresses& to) {
  {
    const std::lock_guard alone(following_);
    if (reader().get() != &left) return {};
    PSD_RETURN_IF_ERROR(replace(left, to));
  }
  if (options_.onEvent) {
    options_.onEvent({ClientEvent::What::back,
                      "reads of versions continue at " + textOf(to) + ", where the model has moved"});
  }
  return {};
}

Status MovingVersionReader::replace(MovableVersionReader& left, const DaemonAddresses& to) {
  ClientOptions next = options_;
  next.servers = to.front();
  PSD_RETURN_IF_ERROR(checkToken(next, left.server()));
  auto connected = connectToVersions(next, bound_);
  if (!connected.ok()) {
    return {connected.error().code,
            fmt::format("{}: the model has moved to {}: {}", left.server(), textOf(to), connected.message())};
  }
  MovableVersionReader& reader = **connected;
  reader.continueFrom(left.seen());
  for (HandedLease& pin : left.handOverPins()) pins_.push_back(std::move(pin));
  PSD_RETURN_IF_ERROR(reader.takeOverPins(pins_));
  pins_.clear();
  {
    const std::lock_guard hold(mutex_);
    reader_ = *connected;
  }
  if (*interrupted_) reader.interrupt();
  return {};
}

Result<std::vector<PublishedVersion>> MovingVersionReader::versions() {
  return run<Result<std::vector<PublishedVersion>>>([](auto& reader) { return reader.versions(); });
}

Result<VersionFreshness> MovingVersionReader::freshness() {
  return run<Result<VersionFreshness>>([](auto& reader) { return reader.freshness(); });
}

Result<PublishedVersion> MovingVersionReader::waitFor(uint64_t number, std::optional<milliseconds> timeout) {
  const auto start = Clock::now();
  return run<Result<PublishedVersion>>([&](auto& reader) {
    std::optional<milliseconds> left = timeout;
    if (left) {
      const auto passed = std::chrono::duration_cast<milliseconds>(Clock::now() - start);
      left = std::max(*left - passed, milliseconds(0));
    }
    return reader.waitFor(number, left);
  });
}

Result<FetchedVersion> MovingVersionReader::fetch(uint64_t number, const FetchedVersion* base) {
  return run<Result<FetchedVersion>>([&](auto& reader) { return reader.fetch(number, base); });
}

Result<uint64_t> MovingVersionReader::pin(uint64_t number, std::chrono::seconds time) {
  return run<Result<uint64_t>>([&](auto& reader) { return reader.pin(number, time); });
}

Status MovingVersionReader::unpin(uint64_t lease) {
  return run<Status>([&](auto& reader) { return reader.unpin(lease); });
}

void MovingVersionReader::interrupt() {
  *interrupted_ = true;
  reader()->interrupt();
}

}  // namespace psd

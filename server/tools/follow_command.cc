#include "server/tools/follow_command.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "common/text/quantity.h"
#include "common/text/text.h"
#include "server/client/whole_version_client.h"
#include "server/tools/hook.h"
#include "server/tools/version_target.h"

namespace psd {
namespace {

constexpr std::chrono::milliseconds kPauseMin{100}, kPauseMax{5'000}, kPauseMaxDamaged{60'000};
constexpr std::chrono::milliseconds kReadersBriefly{100}, kReadersWarned{2'000}, kReadersPoll{60'000};

void printNow(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

void warnNow(const std::string& line) { std::fprintf(stderr, "psd: %s\n", oneLine(line, 4096).c_str()); }

/// Whether another attempt may succeed: the daemon may come back, or get versions or memory.
bool mayPass(const Error& error) {
  switch (error.code) {
    case ErrorCode::unavailable:
    case ErrorCode::shuttingDown:
    case ErrorCode::deadlineExceeded:
    case ErrorCode::notReady:
    case ErrorCode::overloaded:
    case ErrorCode::standby:
    case ErrorCode::stale:
    case ErrorCode::io: return true;
    default: return false;
  }
}

/// The map of a file; nullopt: no file is named.
Result<std::optional<TensorMap>> readMap(Env& env, const std::string& path) {
  if (path.empty()) return std::optional<TensorMap>();
  PSD_ASSIGN_OR_RETURN(TensorMap map, TensorMap::read(env, path));
  return std::optional(std::move(map));
}

/// One run of `psd follow`.
class Follow {
 public:
  Follow(const DaemonCall& call, const FollowOptions& options, VersionTarget& target, const TensorMap* map)
      : call_(call), options_(options), target_(target), map_(map) {}

  Status run() {
    lookAtFile();
    std::chrono::milliseconds pause = kPauseMin;
    std::string warned;
    for (;;) {
      PSD_RETURN_IF_ERROR(awaitReaders());
      const uint64_t before = written_;
      const Status outcome = followOnce();
      if (options_.once && outcome.ok()) return hooked_;
      if (outcome.ok()) continue;  // readers hold the place of the next version
      const bool isOther = isOtherLeft(outcome.error());
      const bool goesOn = !options_.once || std::exchange(moved_, false) || isOther;
      if (!goesOn || !mayPass(outcome.error())) return outcome;
      if (written_ > before) {
        pause = kPauseMin;
        warned.clear();
      }
      if (outcome.message() != warned) warnNow(outcome.message() + "; retrying");
      warned = outcome.message();
      std::this_thread::sleep_for(pause);
      // A damaged version is read whole each time.
      pause = std::min(2 * pause, outcome.error().code == ErrorCode::io ? kPauseMaxDamaged : kPauseMax);
    }
  }

 private:
  /// After a daemon was beyond the bound: calls the next one from now on. Returns whether there is one that
  /// was not asked since a version was taken.
  bool isOtherLeft(const Error& error) {
    if (error.code != ErrorCode::stale) return false;
    std::ranges::rotate(call_.servers, call_.servers.begin() + 1);
    return ++stale_ < call_.servers.size();
  }

  /// Verifies the version that is there. The hook may not have run for it.
  void lookAtFile() {
    const auto found = target_.verified();
    if (!found.ok()) return warnNow(fmt::format("{}; it will be replaced", found.message()));
    if (!found->has_value()) return;
    const VersionHeader& header = **found;
    const std::string map = map_ == nullptr ? "" : map_->checksum();
    if (header.map != map) {
      return warnNow(fmt::format("version {} in {} was written with {}; it will be replaced",
                                 header.info.number, quotedPath(target_.file()),
                                 header.map.empty() ? "no map" : "another map"));
    }
    known_ = header.info;
    printNow(fmt::format("version {} is in {}", known_.number, quotedPath(target_.file())));
    if (!options_.once) hook(known_);
  }

  /// Waits while readers hold the place of the next version, without a connection and a version.
  Status awaitReaders() {
    std::string why = target_.awaitReaders(options_.once ? call_.timeout : kReadersWarned);
    if (why.empty()) return {};
    if (options_.once) return {ErrorCode::overloaded, why};
    warnNow(why);
    while (!why.empty()) why = target_.awaitReaders(kReadersPoll);
    return {};
  }

  Status followOnce() {
    PSD_ASSIGN_OR_RETURN(const std::vector<Address> daemons, allPrimaryAddresses(call_));
    Status here;  // an error on this side, not of the daemon
    const auto taking = [&](const PulledVersion& version) {
      Result<bool> more = take(version);
      here = more.status();
      return more;
    };
    DaemonAddresses moved;
    FollowTerms terms{.timeout = call_.timeout, .take = taking, .moved = [&moved](const DaemonAddresses& to) {
                        moved = to;
                      }};
    if (options_.once) {
      terms.upToDate = [this] {
        hook(known_);
        return false;
      };
    }
    if (options_.bound.any()) {
      terms.check = [&](const VersionFreshness& freshness, auto) {
        return options_.bound.check(freshness, daemons.front().toString());
      };
    }
    const Status there = daemons.size() > 1
                             ? followWholeVersions({daemons, call_.timeout, call_.credentials}, known_, terms)
                             : followVersions(daemons.front(), call_.credentials, known_, base_, terms);
    if (here.ok() && !moved.empty()) PSD_RETURN_IF_ERROR(followMove(daemons, moved));
    return here.ok() ? there : here;
  }

  /// The model has moved from the daemons `from`, by partition, to the daemons `to`.
  Status followMove(const std::vector<Address>& from, const DaemonAddresses& to) {
    std::vector<std::string> all;
    for (const std::vector<std::string>& there : to) all.insert(all.end(), there.begin(), there.end());
    const bool wasSafe = std::ranges::any_of(from, [](const Address& address) { return address.tls; });
    if (wasSafe && !tokenInTheClear(call_.credentials.token, all).empty()) {
      return {
          ErrorCode::invalidArgument,
          fmt::format("the model has moved to {}, where the token, which was sent over TLS so far, would be "
                      "sent unencrypted",
                      joined(all, ","))};
    }
    const auto left = std::ranges::find_if(call_.servers, [&from](const std::string& server) {
      const auto parsed = parseAddress(server);
      return parsed.ok() && *parsed == from.front();
    });
    if (from.size() > 1 || to.size() > 1) {
      call_.servers = to.front();  // the first of several daemons knows the others
    } else if (left != call_.servers.end()) {
      call_.servers = addressesAfterMove(to.front(), std::string(*left), call_.servers);
    }
    moved_ = true;
    return {};
  }

  /// Returns whether to continue.
  Result<bool> take(const PulledVersion& version) {
    const VersionInfo& info = version.info;
    if (!version.patchFault.empty()) {
      warnNow(fmt::format("version {} was read whole: {}", info.number, version.patchFault));
    }
    if (known_.number > 0 && info.history != known_.history) {
      warnNow(fmt::format(
          "the daemon has lost the versions of history {:016x}: version {} of {:016x} replaces them",
          known_.history, info.number, info.history));
    } else if (info.number <= known_.number) {
      warnNow(fmt::format("the daemon was restored to an earlier state: its version {} replaces version {}",
                          info.number, known_.number));
    }
    PSD_ASSIGN_OR_RETURN(const VersionImage image, versionImage(info, version.bytes, map_));
    PSD_RETURN_IF_ERROR(target_.write(image));
    written_++;
    stale_ = 0;
    known_ = info;
    const bool isOfStep = info.moment == VersionMoment::step;
    printNow(fmt::format("version {}: {}, step {}{}{}", info.number, bytesText(image.info.bytes), info.step,
                         isOfStep ? "" : ", ", isOfStep ? "" : momentName(info.moment)));
    hook(info);
    return !options_.once && target_.awaitReaders(kReadersBriefly).empty();
  }

  void hook(const VersionInfo& info) {
    if (options_.hook.empty()) return;
    const Status ran = runHook(options_.hook,
                               {{"PSD_FILE", target_.file()},
                                {"PSD_VERSION", std::to_string(info.number)},
                                {"PSD_HISTORY", fmt::format("{:016x}", info.history)},
                                {"PSD_STEP", std::to_string(info.step)}},
                               options_.hookTimeout);
    if (options_.once) hooked_ = ran;
    if (!ran.ok() && !options_.once) warnNow(fmt::format("version {}: {}", info.number, ran.message()));
  }

  DaemonCall call_;  // its servers are where the model is
  const FollowOptions& options_;
  VersionTarget& target_;
  const TensorMap* const map_;
  VersionInfo known_;
  PatchBase base_;
  uint64_t written_ = 0;
  size_t stale_ = 0;    // daemons beyond the bound since the last version
  bool moved_ = false;  // since the last attempt
  Status hooked_;       // outcome of the hook, with `once`
};

}  // namespace

Status follow(Env& env, const DaemonCall& call, const FollowOptions& options) {
  if (options.into.empty() == options.shared.empty()) {
    return {ErrorCode::invalidArgument, "either --into FOLDER or --shared FILE is needed, not both"};
  }
  PSD_ASSIGN_OR_RETURN(const std::optional<TensorMap> map, readMap(env, options.map));
  PSD_ASSIGN_OR_RETURN(
      const std::unique_ptr<VersionTarget> target,
      options.into.empty() ? openSharedTarget(env, options.shared) : openFolderTarget(env, options.into));
  return Follow(call, options, *target, map ? &*map : nullptr).run();
}

Status exportVersion(Env& env, const DaemonCall& call, uint64_t number, const std::string& mapFile,
                     const std::string& to) {
  PSD_ASSIGN_OR_RETURN(const std::optional<TensorMap> map, readMap(env, mapFile));
  PSD_ASSIGN_OR_RETURN(const std::vector<Address> daemons, allPrimaryAddresses(call));
  Status written;  // an error on this side, not of the daemon
  const auto write = [&](const PulledVersion& version) -> Status {
    PSD_ASSIGN_OR_RETURN(const VersionImage image,
                         versionImage(version.info, version.bytes, map ? &*map : nullptr));
    PSD_RETURN_IF_ERROR(writeFileAtomically(env, to, [&](WritableFile& file) {
      return image.passTo([&](std::span<const std::byte> bytes) { return file.append(bytes); });
    }));
    printNow(
        fmt::format("wrote version {} of {} to '{}'", version.info.number, joined(call.servers, ","), to));
    return {};
  };
  const auto take = [&](const PulledVersion& version) { return written = write(version); };
  const Status pulled = daemons.size() > 1
                            ? pullWholeVersion({daemons, call.timeout, call.credentials}, number, take)
                            : pullVersion(daemons.front(), number, call.timeout, call.credentials, take);
  return written.ok() ? pulled : written;
}

}  // namespace psd

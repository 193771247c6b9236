#include "server/tools/follow_command.h"

#include <algorithm>
#include <cstdio>
#include <string_view>
#include <thread>

#include <fmt/format.h>

#include "common/text/quantity.h"
#include "common/text/text.h"
#include "server/client/version_client.h"
#include "server/publish/version_file.h"
#include "server/tools/hook.h"

namespace psd {
namespace {

constexpr std::chrono::milliseconds kPauseMin{100}, kPauseMax{5'000}, kPauseMaxDamaged{60'000};
constexpr std::string_view kFileName = "model.safetensors";

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
    case ErrorCode::io: return true;
    default: return false;
  }
}

/// One run of `psd follow`.
class Follow {
 public:
  Follow(Env& env, const DaemonCall& call, const FollowOptions& options)
      : env_(env), call_(call), options_(options), file_(options.into + "/" + std::string(kFileName)) {}

  Status run() {
    PSD_RETURN_IF_ERROR(env_.createFolder(options_.into));
    const auto lock = env_.lock(options_.into + "/follow.lock");
    if (!lock.ok() && lock.error().code == ErrorCode::unavailable) {
      return {ErrorCode::unavailable, "'" + options_.into + "' is in use by another psd follow"};
    }
    if (!lock.ok()) return lock.error();
    removeUnfinishedVersions(env_, options_.into, kFileName);
    PSD_RETURN_IF_ERROR(lookAtFile());
    std::chrono::milliseconds pause = kPauseMin;
    std::string warned;
    for (;;) {
      const uint64_t before = written_;
      const Status outcome = followOnce();
      if (outcome.ok()) return hooked_;
      if (options_.once || !mayPass(outcome.error())) return outcome;
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
  /// Verifies the version that is there. The hook may not have run for it.
  Status lookAtFile() {
    PSD_ASSIGN_OR_RETURN(const bool exists, env_.exists(file_));
    if (!exists) return {};
    const auto verified = verifyVersionFile(env_, file_);
    if (!verified.ok()) {
      warnNow(fmt::format("{}; it will be replaced", verified.message()));
      return {};
    }
    known_ = *verified;
    printNow(fmt::format("version {} is in '{}'", known_.number, file_));
    if (!options_.once) hook(known_);
    return {};
  }

  Status followOnce() {
    PSD_ASSIGN_OR_RETURN(const Address address, addressOf(call_));
    Status here;  // an error on this side, not of the daemon
    const Status there = followVersions(address, call_.timeout, call_.credentials, known_, !options_.once,
                                        [&](const PulledVersion& version) {
                                          Result<bool> more = take(version);
                                          here = more.status();
                                          return more;
                                        });
    return here.ok() ? there : here;
  }

  /// Returns whether to continue.
  Result<bool> take(const PulledVersion& version) {
    const VersionInfo& info = version.info;
    if (known_.number > 0 && info.history != known_.history) {
      warnNow(fmt::format(
          "the daemon has lost the versions of history {:016x}: version {} of {:016x} replaces them",
          known_.history, info.number, info.history));
    } else if (info.number <= known_.number) {
      warnNow(fmt::format("the daemon was restored to an earlier state: its version {} replaces version {}",
                          info.number, known_.number));
    }
    PSD_RETURN_IF_ERROR(env_.createFolder(options_.into));  // somebody may have removed it
    PSD_RETURN_IF_ERROR(
        writeFileAtomically(env_, file_, [&](WritableFile& file) { return file.append(version.bytes); }));
    written_++;
    printNow(fmt::format("version {}: {}, step {}, {}", info.number, bytesText(info.bytes), info.step,
                         momentName(info.moment)));
    hook(info);
    return !options_.once;
  }

  void hook(const VersionInfo& info) {
    if (options_.hook.empty()) return;
    const Status ran = runHook(options_.hook,
                               {{"PSD_FILE", file_},
                                {"PSD_VERSION", std::to_string(info.number)},
                                {"PSD_HISTORY", fmt::format("{:016x}", info.history)},
                                {"PSD_STEP", std::to_string(info.step)}},
                               options_.hookTimeout);
    if (options_.once) hooked_ = ran;
    if (!ran.ok() && !options_.once) warnNow(fmt::format("version {}: {}", info.number, ran.message()));
  }

  Env& env_;
  const DaemonCall& call_;
  const FollowOptions& options_;
  const std::string file_;
  VersionInfo known_;
  uint64_t written_ = 0;
  Status hooked_;  // outcome of the hook, with `once`
};

}  // namespace

Status follow(Env& env, const DaemonCall& call, const FollowOptions& options) {
  return Follow(env, call, options).run();
}

Status exportVersion(Env& env, const DaemonCall& call, uint64_t number, const std::string& to) {
  PSD_ASSIGN_OR_RETURN(const Address address, addressOf(call));
  Status written;  // an error on this side, not of the daemon
  const Status pulled =
      pullVersion(address, number, call.timeout, call.credentials, [&](const PulledVersion& version) {
        written =
            writeFileAtomically(env, to, [&](WritableFile& file) { return file.append(version.bytes); });
        if (written.ok()) {
          printNow(fmt::format("wrote version {} of {} to '{}'", version.info.number,
                               joined(call.servers, ","), to));
        }
        return written;
      });
  return written.ok() ? pulled : written;
}

}  // namespace psd

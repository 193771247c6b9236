#include "server/client/whole_version_client.h"

#include <algorithm>
#include <future>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "common/os/random_id.h"
#include "common/safetensors/combined_version.h"
#include "common/text/text.h"
#include "common/wire/published_version.h"
#include "server/client/conversation.h"
#include "server/client/move_watch.h"

namespace psd {
namespace {

using Lists = std::vector<std::vector<VersionInfo>>;

/// How long to wait for a newer version of one daemon before all are asked again.
constexpr std::chrono::milliseconds kWaitOfOne{1'000};
constexpr std::chrono::milliseconds kPauseBetween{50};
constexpr std::chrono::seconds kMoveAnswer{2};  // for a daemon that ends to say where its model is
/// How long, and how often at least, to try again while versions are removed or replaced before they are
/// leased everywhere.
constexpr std::chrono::seconds kSettleTime{10};
constexpr int kAttemptsMin = 5;  // each may take longer than that time

Result<std::vector<VersionInfo>> fetchList(const DaemonsCall& call, const Address& address) {
  using Answer = Result<std::vector<VersionInfo>>;
  return withLogin<std::vector<VersionInfo>>(
      address, call.credentials, call.timeout, "",
      [&](schema::LoginResult::Reader login, capnp::TwoPartyClient&) -> kj::Promise<Answer> {
        if (!login.hasReading()) return Answer(wire::forbiddenError(address.toString(), "reader", login));
        const auto moved = movedAway(address, login);
        if (!moved.ok()) return Answer(moved.error());
        if (*moved) return Answer(movedError(**moved));
        return login.getReading().versionsRequest().send().then(
            [](capnp::Response<schema::VersionsResult> answer) -> Answer {
              if (answer.isError()) return wire::readError(answer.getError());
              std::vector<VersionInfo> versions;
              for (const auto version : answer.getVersions()) versions.push_back(wire::readVersion(version));
              return versions;
            });
      });
}

/// Waits, for a moment, for a version of this number. An error is that of the next call.
void awaitAt(const DaemonsCall& call, const Address& address, uint64_t number) {
  const auto waited =
      withLogin<bool>(address, call.credentials, call.timeout, "",
                      [&](schema::LoginResult::Reader login, capnp::TwoPartyClient&,
                          kj::Timer& timer) -> kj::Promise<Result<bool>> {
                        if (!login.hasReading()) return Result<bool>(false);
                        auto request = login.getReading().publishedRequest();
                        request.setNumber(number);
                        return request.send()
                            .dropPipeline()
                            .then([](auto&&) { return Result<bool>(true); })
                            .exclusiveJoin(timer.afterDelay(kWaitOfOne.count() * kj::MILLISECONDS).then([] {
                              return Result<bool>(true);
                            }));
                      });
  if (!waited.ok()) std::this_thread::sleep_for(kPauseBetween);
}

/// The parts of a version, verified.
Result<std::vector<std::vector<std::byte>>> pullParts(const DaemonsCall& call, uint64_t number) {
  std::vector<std::vector<std::byte>> files(call.daemons.size());
  std::vector<std::future<Status>> pulls;
  const uint64_t lease = drawId();
  Status all;
  try {
    for (size_t i = 0; i < files.size(); i++) {
      pulls.push_back(std::async(std::launch::async, [&call, &into = files[i], i, number, lease] {
        const auto take = [&into](const PulledVersion& part) -> Status {
          try {
            into.assign(part.bytes.begin(), part.bytes.end());
          } catch (const std::bad_alloc&) {
            return {ErrorCode::overloaded, "out of memory: cannot hold the parts of a version"};
          }
          return {};
        };
        return pullVersion(call.daemons[i], number, call.timeout, call.credentials, take, lease,
                           Patience::endless);
      }));
    }
  } catch (const std::system_error& error) {
    all = {ErrorCode::overloaded, std::string("no thread for the parts of a version: ") + error.what()};
  }
  for (std::future<Status>& pull : pulls) {
    const Status pulled = pull.get();
    if (all.ok()) all = pulled;
  }
  PSD_RETURN_IF_ERROR(all);
  return files;
}

/// Pulls a version that all daemons had a moment ago, and returns what `take` says of it.
Result<bool> pullAndJoin(const DaemonsCall& call, uint64_t number,
                         const std::function<Result<bool>(const PulledVersion&)>& take) {
  PSD_ASSIGN_OR_RETURN(const auto files, pullParts(call, number));
  std::vector<std::span<const std::byte>> spans(files.begin(), files.end());
  PSD_ASSIGN_OR_RETURN(const WholeVersion whole, WholeVersion::join(std::move(spans)));
  std::vector<std::byte> file;
  try {
    file.resize(whole.info().bytes);
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::overloaded, fmt::format("out of memory: cannot allocate {} bytes for version {}",
                                                    whole.info().bytes, number)};
  }
  whole.writeTo(file);
  return take({whole.info(), file, ""});
}

/// Decides whether to pull once more. Owned by one thread.
class Attempts {
 public:
  /// Whether another attempt may succeed, for which it pauses: a part was removed or replaced before it was
  /// leased, and that has not happened for too long without a success().
  bool mayFollow(const Error& error) {
    if (error.code != ErrorCode::notReady && error.code != ErrorCode::modelMismatch) return false;
    const auto now = std::chrono::steady_clock::now();
    if (failed_++ == 0) until_ = now + kSettleTime;
    if (failed_ >= kAttemptsMin && now >= until_) return false;
    std::this_thread::sleep_for(kPauseBetween);
    return true;
  }
  void success() { failed_ = 0; }

 private:
  int failed_ = 0;
  std::chrono::steady_clock::time_point until_;
};

}  // namespace

Result<Lists> fetchVersionLists(const DaemonsCall& call) {
  Lists lists;
  for (const Address& address : call.daemons) {
    PSD_ASSIGN_OR_RETURN(lists.emplace_back(), fetchList(call, address));
  }
  return lists;
}

Status pullWholeVersion(const DaemonsCall& call, uint64_t number,
                        const std::function<Status(const PulledVersion&)>& take) {
  Attempts attempts;
  for (;;) {
    PSD_ASSIGN_OR_RETURN(const Lists lists, fetchVersionLists(call));
    const auto common = commonVersions(lists);
    const auto found = number == 0 && !common.empty()
                           ? std::prev(common.end())
                           : std::ranges::find(common, number, &VersionInfo::number);
    if (found == common.end()) return noCommonVersion(lists, number);
    Status taken;
    const auto pulled = pullAndJoin(call, found->number, [&](const PulledVersion& version) -> Result<bool> {
      taken = take(version);
      return true;
    });
    if (pulled.ok()) return taken;
    if (number != 0 || !attempts.mayFollow(pulled.error())) return pulled.error();
  }
}

namespace {

/// followWholeVersions() until an error, whatever it comes from.
Status followWithoutMoves(const DaemonsCall& call, VersionInfo& known, const FollowTerms& terms,
                          MoveWatch& watch) {
  Attempts attempts;
  for (;;) {
    PSD_ASSIGN_OR_RETURN(const Lists lists, fetchVersionLists(call));
    if (watch.hasEnded()) {
      return {ErrorCode::unavailable, call.daemons.front().toString() + ": the connection broke"};
    }
    const auto common = commonVersions(lists);
    const bool isNew =
        !common.empty() && (common.back().history != known.history || common.back().number > known.number);
    if (!isNew) {
      if (!common.empty() && terms.upToDate && !terms.upToDate()) return {};
      const size_t last = lastDaemon(lists);
      awaitAt(call, call.daemons[last], newestNumber(lists[last]) + 1);
      continue;
    }
    Status taken;
    const auto more = pullAndJoin(call, common.back().number, [&](const PulledVersion& version) {
      Result<bool> each = terms.take(version);
      taken = each.status();
      if (each.ok()) known = version.info;
      return each;
    });
    PSD_RETURN_IF_ERROR(taken);
    if (!more.ok() && !attempts.mayFollow(more.error())) return more.error();
    if (!more.ok()) continue;
    if (!*more) return {};
    attempts.success();
  }
}

}  // namespace

Status followWholeVersions(const DaemonsCall& call, VersionInfo& known, const FollowTerms& terms) {
  MoveWatch watch(call.daemons.front(), call.timeout, call.credentials);
  const Status ended = followWithoutMoves(call, known, terms, watch);
  if (ended.ok()) return ended;
  // Daemons whose model has moved away say so before they end.
  const ErrorCode code = ended.error().code;
  const bool mayHaveMoved =
      code == ErrorCode::unavailable || code == ErrorCode::shuttingDown || code == ErrorCode::standby;
  const DaemonAddresses to = watch.within(mayHaveMoved ? kMoveAnswer : std::chrono::seconds(0));
  if (to.empty()) return ended;
  if (terms.moved) terms.moved(to);
  return movedError(to);
}

}  // namespace psd

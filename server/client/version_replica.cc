#include "server/client/version_replica.h"

#include <algorithm>
#include <span>
#include <utility>

#include <pthread.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>

#include "common/text/quantity.h"
#include "common/wire/published_version.h"
#include "server/publish/publish_config.h"
#include "server/serving/move_record.h"

namespace psd {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kReplicaAttempt{3'000};  // to connect and log in
constexpr milliseconds kReplicaPauseMin{100}, kReplicaPauseMax{2'000}, kReplicaPauseDamaged{30'000};
// A daemon whose versions were last complete that long ago is left for another one.
constexpr std::chrono::seconds kOutdatedAfter{10};

}  // namespace

VersionReplica::VersionReplica(std::shared_ptr<VersionStore> versions, Terms terms, std::string path)
    : versions_(std::move(versions)),
      terms_(std::move(terms)),
      path_(std::move(path)),
      upstreams_(terms_.upstream),
      noted_(upstreams_.size()),
      thread_([this] { run(); }) {}

VersionReplica::~VersionReplica() { stop(); }

void VersionReplica::stop() {
  stop_.stop();
  if (thread_.joinable()) thread_.join();
  versions_->end({ErrorCode::shuttingDown, "the daemon is shutting down"});
}

void VersionReplica::run() {
  pthread_setname_np(pthread_self(), "psd-replica");
  if (const auto newest = versions_->find(0); newest.ok()) known_ = *newest;
  milliseconds pause = kReplicaPauseMin;
  for (;;) {
    const VersionInfo before = known_;
    const Status ended = follow();
    if (stop_.stopped()) return;
    if (followMove()) {
      if (!stop_.pause(kReplicaPauseMin)) return;
      continue;
    }
    note(ended);
    versions_->prune();
    if (known_.number != before.number || known_.history != before.history) pause = kReplicaPauseMin;
    followed_ = (followed_ + 1) % upstreams_.size();
    if (followed_ > 0) continue;  // all are tried before a pause
    if (!stop_.pause(pause)) return;
    pause =
        std::min(2 * pause, ended.error().code == ErrorCode::io ? kReplicaPauseDamaged : kReplicaPauseMax);
  }
}

Status VersionReplica::follow() {
  followedSince_ = Clock::now();
  here_ = {};
  const FollowTerms terms{.timeout = kReplicaAttempt,
                          .take = [this](const PulledVersion& version) { return take(version); },
                          .admit = [this](const VersionInfo& version) { return admit(version); },
                          .check = [this](const VersionFreshness& upstream,
                                          Clock::time_point asked) { return check(upstream, asked); },
                          .moved = [this](const DaemonAddresses& to) { movedTo_ = to; },
                          .stop = &stop_};
  const auto credentials = terms_.credentials();
  Status ended = credentials.ok() ? followVersions(upstreams_[followed_], *credentials, known_, base_, terms)
                                  : credentials.status();
  if (!here_.ok()) {
    ended = here_;
    hereFailed_ = true;
  }
  if (movedTo_.size() > 1) {
    divided_ = fmt::format(
        "the model has moved from {} to several daemons ({}), which publish parts of its versions; a replica "
        "copies those of a single daemon",
        address(), addressesText(movedTo_));
    ended = {ErrorCode::standby, divided_};
  } else if (!divided_.empty() && !ended.ok() && ended.message() != divided_) {
    ended = {ended.error().code, ended.message() + "; " + divided_};
  }
  const std::lock_guard hold(mutex_);
  source_.clear();
  error_ = ended.message();
  return ended;
}

bool VersionReplica::followMove() {
  const DaemonAddresses to = std::exchange(movedTo_, {});
  if (to.size() != 1) return false;  // several have parts of versions, which are not copied
  std::vector<Address> there;
  for (const std::string& text : to.front()) {
    const auto parsed = parseAddress(text);
    const auto credentials = terms_.credentials();
    if (!parsed.ok() || !credentials.ok()) return false;
    if (upstreams_[followed_].tls && !tokenInTheClear(credentials->token, std::span(&text, 1)).empty()) {
      spdlog::warn("the model has moved to {}, where the token would be sent unencrypted: not followed",
                   text);
      return false;
    }
    there.push_back(*parsed);
  }
  if (there.empty()) return false;
  spdlog::info("the model has moved from {} to {}: its versions are followed there", address(),
               there.front().toString());
  upstreams_ = addressesAfterMove(there, upstreams_[followed_], upstreams_);
  noted_.assign(upstreams_.size(), "");
  followed_ = 0;
  return true;
}

void VersionReplica::note(const Status& ended) {
  std::string& noted = noted_[followed_];
  if (ended.message() == noted) return;
  noted = ended.message();
  spdlog::warn("copies no version of {}: {}; retrying", address(), noted);
}

Status VersionReplica::admit(const VersionInfo& version) {
  if (version.parts > 0) {
    return {ErrorCode::invalidArgument,
            address() +
                ": is one of several daemons that serve a model, whose versions are parts of it; a replica "
                "copies those of a single daemon"};
  }
  // Another daemon may still have a history that ended before this process began.
  if (known_.number > 0 && version.history != known_.history && version.created < known_.created) {
    ended_.add(version.history);
  }
  if (!ended_.admits(version.history, followed_, upstreams_.size())) {
    return {ErrorCode::notReady, address() + ": has the versions of a history that has ended"};
  }
  return here_ = versions_->admitsCopy(version);
}

Result<bool> VersionReplica::take(const PulledVersion& pulled) {
  if (!pulled.patchFault.empty()) {
    spdlog::warn("version {} was read whole: {}", pulled.info.number, pulled.patchFault);
  }
  const bool replaces = known_.number > 0 && known_.history != pulled.info.history;
  const Clock::time_point start = Clock::now();
  const auto adopted = versions_->adopt(pulled.info, pulled.bytes, pulled.patch);
  if (adopted.ok() && replaces) {
    spdlog::warn("the source has lost the versions of history {:016x}: version {} of {:016x} replaces them",
                 known_.history, pulled.info.number, pulled.info.history);
    ended_.add(known_.history);
  }
  const std::lock_guard hold(mutex_);
  if (!adopted.ok()) {
    failures_++;
    here_ = adopted.status();
    return adopted.error();
  }
  hereFailed_ = false;
  noted_[followed_].clear();
  outcomes_.note(adopted, std::chrono::duration<double>(Clock::now() - start).count(), "");
  // It was the newest of the daemon when that was asked last, or came later.
  allAt_ = std::max(allAt_, asked_ - upstream_.age);
  return true;
}

bool VersionReplica::leaves(milliseconds age) {
  if (age <= kOutdatedAfter) {
    outdated_ = 0;
    return false;
  }
  // Where all are out of date, each is followed for a while: any of them may be current again.
  const bool mayBeOthers = outdated_ + 1 < upstreams_.size();
  const bool isTurn = upstreams_.size() > 1 && Clock::now() - followedSince_ > kOutdatedAfter;
  if (!mayBeOthers && !isTurn) return false;
  outdated_ = mayBeOthers ? outdated_ + 1 : 0;
  return true;
}

Status VersionReplica::check(const VersionFreshness& upstream, Clock::time_point asked) {
  if (std::ranges::find(upstream.path, terms_.self) != upstream.path.end()) {
    return {ErrorCode::invalidArgument,
            address() + ": is this daemon, or follows it; publish.upstream must lead to the source"};
  }
  if (upstream.path.size() >= wire::kFreshnessPathMax) {
    return {ErrorCode::invalidArgument, address() + ": too many daemons are on the way to the source"};
  }
  if (leaves(upstream.age)) return {ErrorCode::unavailable, address() + ": is out of date itself"};
  versions_->prune();
  const auto here = versions_->find(0);
  const std::lock_guard hold(mutex_);
  if (source_.empty()) {
    source_ = address();
    divided_.clear();
    if (!hereFailed_) {
      noted_[followed_].clear();
      spdlog::info("follows the versions of {}", source_);
    }
  }
  error_.clear();
  upstream_ = upstream;
  asked_ = asked;
  const bool hasAll = here.ok()
                          ? here->number == upstream.sourceNewest && here->history == upstream.sourceHistory
                          : upstream.sourceNewest == 0;
  if (hasAll) allAt_ = std::max(allAt_, asked - upstream.age);
  return {};
}

VersionFreshness VersionReplica::freshness() const {
  const auto here = versions_->find(0);
  const std::lock_guard hold(mutex_);
  VersionFreshness out = upstream_;
  out.newest = here.ok() ? here->number : 0;
  out.history = here.ok() ? here->history : 0;
  // A version that has just arrived may be newer than the last answer.
  if (out.history == out.sourceHistory) out.sourceNewest = std::max(out.sourceNewest, out.newest);
  out.age = std::min(std::chrono::duration_cast<milliseconds>(Clock::now() - allAt_),
                     VersionFreshness::kAgeUnknown);
  out.path.insert(out.path.begin(), terms_.self);
  return out;
}

PublishStatus VersionReplica::status() const {
  PublishStatus out;
  versions_->fillStatus(out);
  out.from = publishFromName(PublishConfig::From::upstream);
  out.path = path_;
  const auto current = freshness();
  const std::lock_guard hold(mutex_);
  outcomes_.fillStatus(out);
  out.failures = failures_;
  UpstreamStatus& upstream = out.upstream.emplace();
  upstream.address = source_;
  if (!error_.empty()) out.error = error_;
  upstream.newest = current.sourceNewest;
  upstream.hops = current.path.size() - 1;
  if (current.age < VersionFreshness::kAgeUnknown)
    upstream.ageSeconds = std::chrono::duration<double>(current.age).count();
  return out;
}

}  // namespace psd

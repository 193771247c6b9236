#include "server/cluster/cluster_document_client.h"

#include <algorithm>
#include <utility>

#include "common/os/random_id.h"
#include "server/cluster/replica_text.h"
#include "server/serving/cluster_document_json.h"

namespace psd {

ClusterDocumentClient::ClusterDocumentClient(Engine& engine, std::string key, DaemonId me,
                                             std::vector<Address> addresses)
    : engine_(engine), key_(std::move(key)), me_(me), addresses_(std::move(addresses)) {}

ClusterView ClusterDocumentClient::view() const {
  if (!document_) return {.revision = before_ + revision_};
  const ReplicaSet& group = document_->group;
  if (document_->ended) {
    return {.revision = before_ + revision_,
            .ended = EndedRun{group.term, group.primary, group.standby, document_->saved, document_->source}};
  }
  return {before_ + revision_, group.term, group.primary, group.standby};
}

Result<ClusterView> ClusterDocumentClient::take(const Result<Stored>& stored, Asked asked) {
  auto plan = [&]() -> Result<std::optional<ClusterDocument>> {
    if (!stored.ok()) return stored.error();
    if (stored->revision == 0) return std::optional<ClusterDocument>();
    PSD_ASSIGN_OR_RETURN(ClusterDocument parsed, parseDocument(stored->text));
    return std::optional(std::move(parsed));
  }();
  if (stored.ok()) trouble_ = plan.ok() ? "" : plan.message();
  if (!plan.ok()) return plan.error();
  const bool below = stored->revision < revision_;
  // An answer from before a loss is ignored, and so is one older than what is known by now.
  const bool old = asked.losses != losses_ || (below && asked.news != news_);
  if (!old) {
    if (below) {
      losses_++;
      before_ += revision_ + 1;
    }
    news_ += stored->revision != revision_;
    document_ = *std::move(plan);
    revision_ = stored->revision;
    if (!gone()) last_ = document_->ended ? std::nullopt : document_;
  }
  if (gone() && last_) {
    trouble_ =
        "the cluster document is gone: key " + key_ + " no longer exists, as if the engine lost its data";
  }
  return view();
}

kj::Promise<Result<ClusterView>> ClusterDocumentClient::read() {
  return engine_.read(key_).then(
      [this, now = asked()](const Result<Stored>& stored) { return take(stored, now); });
}

kj::Promise<Result<ClusterView>> ClusterDocumentClient::changed() {
  return engine_.changed(key_, revision_).then([this, now = asked()](const Result<Stored>& stored) {
    return take(stored, now);
  });
}

Result<ClusterDocument> ClusterDocumentClient::planFor(const ClusterView& wanted,
                                                       const std::vector<Address>& standbyAt) const {
  const uint64_t proposal = drawId();
  if (wanted.ended) {
    ClusterDocument plan;
    plan.proposal = proposal;
    plan.group = {
        .term = wanted.ended->term, .primary = wanted.ended->primary, .standby = {}, .history = drawId()};
    const std::vector<Address> known = addressesOf(plan.group.primary);
    plan.daemons[plan.group.primary] = known.empty() ? addresses_ : known;
    plan.ended = true;
    plan.source = wanted.ended->source;
    PSD_RETURN_IF_ERROR(validateDocument(plan));
    return plan;
  }
  if (gone() && last_) {
    ClusterDocument plan = *last_;
    plan.proposal = proposal;
    plan.group = {
        .term = wanted.term, .primary = wanted.primary, .standby = wanted.standby, .history = drawId()};
    if (wanted.primary == me_) plan.daemons[me_] = addresses_;
    PSD_RETURN_IF_ERROR(validateDocument(plan));
    return plan;
  }
  if (!document_ || document_->ended) {
    ClusterDocument plan;
    plan.proposal = proposal;
    const uint64_t term = std::max(wanted.term, document_ ? document_->group.term + 1 : 1);
    plan.group = {.term = term, .primary = me_, .standby = {}, .history = drawId()};
    plan.daemons[me_] = addresses_;
    return plan;
  }
  ClusterDocument plan = *document_;
  if (wanted.primary != plan.group.primary) {
    if (wanted.primary == me_) plan.daemons[me_] = addresses_;
    return withPrimary(std::move(plan), wanted.primary, drawId(), proposal);
  }
  if (!wanted.standby) return withoutStandby(std::move(plan), proposal);
  return withStandby(std::move(plan), *wanted.standby, standbyAt, proposal);
}

kj::Promise<Result<ClusterDocumentClient::Outcome>> ClusterDocumentClient::swap(
    uint64_t expectedRevision, const ClusterView& wanted, const std::vector<Address>& standbyAt) {
  using Answer = Result<Outcome>;
  if (moved()) return Answer(ErrorCode::unavailable, "the model has moved to other daemons");
  const auto plan = planFor(wanted, standbyAt);
  // The document has changed since: the current one decides.
  if (!plan.ok()) return Answer(plan.error());
  const Error lost{ErrorCode::unavailable, "the cluster document was lost meanwhile"};
  if (expectedRevision < before_) return Answer(lost);
  return engine_.swap(key_, expectedRevision - before_, documentText(*plan))
      .then([this, lost, then = asked()](const Result<Swapped>& swapped) -> Answer {
        PSD_ASSIGN_OR_RETURN(
            const ClusterView now,
            take(swapped.ok() ? Result<Stored>(swapped->now) : Result<Stored>(swapped.error()), then));
        if (then.losses != losses_ && !now.vacant()) return lost;
        return Outcome{swapped->won, now};
      });
}

kj::Promise<ClusterDocumentClient::Moving> ClusterDocumentClient::moveAway(RecordedMove moved) {
  return read().then([this, move = std::move(moved)](const Result<ClusterView>& view) -> kj::Promise<Moving> {
    if (!view.ok()) return Moving::unknown;
    if (const RecordedMove* const there = this->moved()) {
      return there->move == move.move ? Moving::counts : Moving::stays;
    }
    if (!document_ || document_->ended || document_->group.primary != me_) return Moving::stays;
    const auto wanted = withMove(*document_, move, drawId());
    if (!wanted.ok()) return Moving::stays;
    return engine_.swap(key_, revision_, documentText(*wanted))
        .then([this, then = asked()](const Result<Swapped>& swapped) {
          if (!swapped.ok()) return Moving::unknown;
          static_cast<void>(take(Result<Stored>(swapped->now), then));
          return swapped->won ? Moving::counts : Moving::unknown;
        });
  });
}

kj::Promise<Status> ClusterDocumentClient::end(bool saved) {
  return read().then([this, saved](const Result<ClusterView>& view) -> kj::Promise<Status> {
    if (!view.ok()) return view.status();
    if (!document_ || document_->ended) return Status();
    if (document_->group.primary != me_) {
      return Status(ErrorCode::notReady, "another daemon is the primary by now: " + primaryAddress());
    }
    ClusterDocument ended = *document_;
    ended.ended = true;
    ended.saved = saved;
    ended.proposal = drawId();
    return engine_.swap(key_, revision_, documentText(ended))
        .then([this, saved, then = asked()](const Result<Swapped>& swapped) -> kj::Promise<Status> {
          if (!swapped.ok()) return swapped.status();
          static_cast<void>(take(Result<Stored>(swapped->now), then));
          return swapped->won ? kj::Promise<Status>(Status()) : end(saved);  // it has changed meanwhile
        });
  });
}

std::vector<Address> ClusterDocumentClient::addressesOf(DaemonId daemon) const {
  for (const std::optional<ClusterDocument>* plan : {&document_, &last_}) {
    if (!*plan) continue;
    const auto found = (*plan)->daemons.find(daemon);
    if (found != (*plan)->daemons.end()) return found->second;
  }
  return {};
}

std::vector<Address> ClusterDocumentClient::addressesOfAll() const {
  std::vector<Address> all;
  const std::optional<ClusterDocument>& plan = gone() && last_ ? last_ : document_;
  if (!plan) return all;
  for (const auto& [daemon, addresses] : plan->daemons)
    all.insert(all.end(), addresses.begin(), addresses.end());
  return all;
}

std::string ClusterDocumentClient::primaryAddress() const {
  const std::optional<ClusterDocument>& plan = gone() && last_ ? last_ : document_;
  return !plan || plan->ended ? "no daemon" : addressOf(plan->group.primary);
}

std::string ClusterDocumentClient::addressOf(DaemonId daemon) const {
  const auto addresses = addressesOf(daemon);
  return addresses.empty() ? "daemon " + hex(daemon) : addresses.front().toString();
}

}  // namespace psd

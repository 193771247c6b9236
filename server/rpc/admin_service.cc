#include "server/rpc/admin_service.h"

#include <algorithm>
#include <chrono>

#include "common/config/json_file.h"
#include "common/text/text.h"
#include "common/wire/convert.h"
#include "common/wire/login.h"
#include "common/wire/published_version.h"
#include "server/client/refusal.h"
#include "server/rpc/move_services.h"
#include "server/rpc/sink_link.h"
#include "server/rpc/status_answer.h"
#include "server/status/status_json.h"

namespace psd {

kj::Promise<void> AdminService::reload(ReloadContext context) {
  context.releaseParams();
  return administration_.reload(callerText()).then([context](Result<std::string> change) mutable {
    auto results = context.getResults();
    wire::writeStatus(change.status(), results.initStatus());
    if (change.ok()) results.setChange(change->c_str());
  });
}

kj::Promise<void> AdminService::checkpoint(CheckpointContext context) {
  context.releaseParams();
  return administration_.checkpoint(callerText()).then([context](Result<std::string> path) mutable {
    auto results = context.getResults();
    wire::writeStatus(path.status(), results.initStatus());
    if (path.ok()) results.setPath(path->c_str());
  });
}

kj::Promise<void> AdminService::publish(PublishContext context) {
  context.releaseParams();
  return administration_.publish(callerText()).then([context](Result<VersionInfo> made) mutable {
    wire::writeVersion(made, context.getResults());
  });
}

kj::Promise<void> AdminService::rollBack(RollBackContext context) {
  const uint64_t number = context.getParams().getNumber();
  context.releaseParams();
  if (number == 0) {
    wire::writeError({ErrorCode::invalidArgument, "versions are numbered from 1"},
                     context.getResults().initError());
    return kj::READY_NOW;
  }
  return administration_.rollBack(number, callerText()).then([context](Result<VersionInfo> made) mutable {
    wire::writeVersion(made, context.getResults());
  });
}

kj::Promise<void> AdminService::newestCheckpoint(NewestCheckpointContext context) {
  context.releaseParams();
  return administration_.newestPart().then([context](Result<NewestPart> newest) mutable {
    auto results = context.getResults();
    wire::writeStatus(newest.status(), results.initStatus());
    if (!newest.ok()) return;
    results.setPartition(newest->partition.index);
    results.setOf(newest->partition.of);
    results.setNumber(newest->ref.number);
    results.setVersion(newest->ref.version);
    results.setCrc(newest->ref.crc);
    results.setLogged(newest->logged);
    if (newest->whole) results.setWhole(formatWhole(*newest->whole).c_str());
  });
}

kj::Promise<void> AdminService::recordWhole(RecordWholeContext context) {
  const auto text = context.getParams().getDocument();
  auto whole = parseWhole({text.cStr(), text.size()}, std::string(kWholeName));
  context.releaseParams();
  if (!whole.ok()) {
    wire::writeStatus({ErrorCode::invalidArgument, whole.message()}, context.getResults().initStatus());
    return kj::READY_NOW;
  }
  return administration_.recordWhole(*std::move(whole)).then(answering(context));
}

kj::Promise<void> AdminService::removeTrainer(RemoveTrainerContext context) {
  const Rank rank{context.getParams().getRank()};
  context.releaseParams();
  return administration_.removeTrainer(rank, callerText())
      .then([context](Result<std::string> removed) mutable {
        auto results = context.getResults();
        wire::writeStatus(removed.status(), results.initStatus());
        if (removed.ok()) results.setRemoved(removed->c_str());
      });
}

kj::Promise<void> AdminService::set(SetContext context) {
  std::string assignment(wire::textIn(context.getParams().getAssignment()));
  context.releaseParams();
  return administration_.set(std::move(assignment), callerText())
      .then([context](Result<std::string> change) mutable {
        auto results = context.getResults();
        wire::writeStatus(change.status(), results.initStatus());
        if (change.ok()) results.setChange(change->c_str());
      });
}

kj::Promise<void> AdminService::checkChange(CheckChangeContext context) {
  std::string assignment(wire::textIn(context.getParams().getAssignment()));
  context.releaseParams();
  return administration_.checkChange(std::move(assignment))
      .then([context](Result<std::string> change) mutable {
        auto results = context.getResults();
        wire::writeStatus(change.status(), results.initStatus());
        if (change.ok()) results.setChange(change->c_str());
      });
}

kj::Promise<void> AdminService::events(EventsContext context) {
  const uint64_t after = context.getParams().getAfter();
  const bool wait = context.getParams().getWait();
  context.releaseParams();
  context.allowCancellation();
  if (follows_) return KJ_EXCEPTION(OVERLOADED, "this connection already waits for events");
  follows_ = true;
  return administration_.events(after, wait)
      .then([this, context](const DaemonEvents& events) mutable {
        std::string text = jsonText(statusJson(events));
        const uint64_t bytes = text.size();
        auto make = [context, text = std::move(text)]() mutable {
          context.getResults().setJson(text.c_str());
        };
        return connection_->answerWithin(bytes, std::move(make), throwRefusal);
      })
      .attach(kj::defer([this] { follows_ = false; }));
}

namespace {

Result<FollowerRequest> readFollower(schema::Admin::ReplicateParams::Reader params) {
  constexpr unsigned kAddressesMax = 16;
  FollowerRequest request{DaemonId{params.getFollower()},
                          DaemonId{params.getPrimary()},
                          printable(wire::textIn(params.getName()), 200),
                          {},
                          params.getRecords(),
                          params.getFolderTerm()};
  const auto addresses = params.getAddresses();
  if (addresses.size() > kAddressesMax) {
    return Error{ErrorCode::invalidArgument,
                 "a daemon has at most " + std::to_string(kAddressesMax) + " addresses"};
  }
  for (const auto text : addresses) {
    PSD_ASSIGN_OR_RETURN(Address address, parseAddress(wire::textIn(text)));
    request.addresses.push_back(std::move(address));
  }
  return request;
}

}  // namespace

kj::Promise<void> AdminService::replicate(ReplicateContext context) {
  const auto params = context.getParams();
  auto request = readFollower(params);
  if (!request.ok()) {
    wire::writeError(request.error(), context.getResults().initError());
    return kj::READY_NOW;
  }
  kj::Own<FollowerLink> link = kj::heap<SinkLink>(params.getSink(), connection_);
  const bool hasSink = params.hasSink();
  if (!hasSink) request->follower = DaemonId{};
  context.releaseParams();
  std::shared_ptr<EventLoop> loop = connection_->loop().shared_from_this();
  return administration_.processAndFolder().then([this, context, request = *std::move(request),
                                                  link = kj::mv(link),
                                                  loop](Administration::ProcessAndFolder here) mutable {
    context.getResults().setDaemon(here.daemon);
    context.getResults().setFolderTerm(here.folderTerm);
    return administration_.admit(std::move(request), loop)
        .then(
            [this, context, link = kj::mv(link), loop](Result<ReplicaController::Admitted> admitted) mutable {
              if (!admitted.ok()) return wire::writeError(admitted.error(), context.getResults().initError());
              context.getResults().setTerm(admitted->term);
              feed(*std::move(admitted), kj::mv(link), *loop);
            });
  });
}

void AdminService::feed(ReplicaController::Admitted admitted, kj::Own<FollowerLink> link, EventLoop& loop) {
  auto feed = kj::heap<ReplicaFeed>(admitted.replication, admitted.replicator, kj::mv(link), loop.timer(),
                                    admitted.feed->sharedState());
  const std::shared_ptr<FeedHandle> handle = admitted.feed;
  handle->set(feed.get());
  auto gone = connection_->whenDisconnected().then(
      [] { return Status(ErrorCode::unavailable, "the connection to the standby broke"); });
  loop.detach(feed->run(admitted.copy)
                  .exclusiveJoin(kj::mv(gone))
                  .then([&administration = administration_, handle](Status why) {
                    handle->set(nullptr);
                    return administration.feedEnded(handle, std::move(why));
                  })
                  .attach(kj::defer([handle] { handle->set(nullptr); }), kj::mv(feed)));
}

kj::Promise<void> AdminService::switchOver(SwitchOverContext context) {
  context.releaseParams();
  return administration_.switchOver(callerText()).then(answering(context));
}

kj::Promise<void> AdminService::recover(RecoverContext context) {
  context.releaseParams();
  return administration_.recover(callerText()).then(answering(context));
}

kj::Promise<void> AdminService::startMove(StartMoveContext context) {
  const auto params = context.getParams();
  const uint64_t move = params.getMove();
  auto to = wire::readDaemonAddresses(connection_->peer(), params.getTo());
  constexpr uint64_t kMostMs = 24 * 3600 * 1000;
  const std::chrono::milliseconds most(std::min(params.getTimeoutMs(), kMostMs));
  const MoveStart said{params.getLead(), params.getHeartbeats()};
  context.releaseParams();
  if (!to.ok()) {
    wire::writeError({ErrorCode::invalidArgument, to.message()}, context.getResults().initError());
    return kj::READY_NOW;
  }
  return administration_
      .withMovesFor(callerText(), "a move of the model from here",
                    [move, to = *std::move(to), most, said](OutgoingMove& outgoing, IncomingMove&) mutable {
                      return outgoing.begin(move, std::move(to), most, said);
                    })
      .then([this, context, move](const Status& begun) mutable {
        if (!begun.ok()) return wire::writeError(begun.error(), context.getResults().initError());
        context.getResults().setLeaving(kj::heap<LeavingService>(connection_, administration_, move));
      });
}

kj::Promise<void> AdminService::moveTerms(MoveTermsContext context) {
  context.releaseParams();
  return administration_.withMoves([](OutgoingMove& outgoing, IncomingMove&) { return outgoing.terms(); })
      .then([context](const Result<MoveTerms>& terms) mutable {
        if (!terms.ok()) return wire::writeError(terms.error(), context.getResults().initError());
        writeTerms(*terms, context.getResults().initTerms());
      });
}

kj::Promise<void> AdminService::giveVersion(GiveVersionContext context) {
  const uint64_t after = context.getParams().getAfter();
  auto sink = context.getParams().getSink();
  context.releaseParams();
  context.allowCancellation();
  const auto given = std::make_shared<VersionStore::Given>();
  return sendImage(kj::mv(sink), connection_,
                   [this, after, given](std::shared_ptr<ImageStream> stream) {
                     return administration_
                         .withMoves([after, stream](OutgoingMove& outgoing, IncomingMove&) {
                           return outgoing.giveVersion(after, stream);
                         })
                         .then([given](Result<VersionStore::Given> done) -> Result<std::string> {
                           if (!done.ok()) return done.error();
                           *given = *std::move(done);
                           return given->path;
                         });
                   })
      .then([context, given](const Status& sent) mutable {
        auto results = context.getResults();
        wire::writeStatus(sent, results.initStatus());
        results.setNumber(given->number);
        results.setNewer(given->newer);
        results.setOldest(given->oldest);
      });
}

kj::Promise<void> AdminService::arrive(ArriveContext context) {
  const uint64_t move = context.getParams().getMove();
  const uint32_t parts = context.getParams().getParts();
  const bool beats = context.getParams().getHeartbeats();
  context.releaseParams();
  return administration_
      .withMovesFor(callerText(), "a move of the model to here",
                    [move, parts, beats](OutgoingMove& outgoing, IncomingMove& incoming) {
                      // A daemon whose model has moved away would not serve what it receives.
                      if (auto moved = outgoing.refusal()) return Status(*std::move(moved));
                      return incoming.begin(move, parts, beats);
                    })
      .then([this, context, move](const Status& begun) mutable {
        if (!begun.ok()) return wire::writeError(begun.error(), context.getResults().initError());
        context.getResults().setRules(connection_->loop().config().daemons.rules.c_str());
        context.getResults().setArriving(kj::heap<ArrivingService>(connection_, administration_, move));
      });
}

kj::Promise<void> AdminService::stop(StopContext context) {
  auto reason = context.getParams().getReason();
  std::string text = "asked by " + callerText();
  if (reason.size() > 0) text += ": " + printable({reason.begin(), reason.size()});
  const bool wait = context.getParams().getWait();
  context.releaseParams();
  auto done = administration_.stop(text, wait, callerText()).then(answering(context));
  return wait ? connection_->untilOutcome(kj::mv(done)) : kj::mv(done);
}

}  // namespace psd

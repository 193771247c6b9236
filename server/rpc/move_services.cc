#include "server/rpc/move_services.h"

#include <algorithm>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "common/text/text.h"
#include "common/wire/convert.h"
#include "server/client/version_carrier.h"
#include "server/replica/image_stream.h"
#include "server/rpc/sink_link.h"
#include "server/rpc/status_answer.h"

namespace psd {
namespace {

constexpr uint64_t kPartBytes = 1u << 20;
constexpr size_t kPartsAtOnce = 4;

Result<std::vector<std::byte>> copyOf(capnp::Data::Reader received) {
  try {
    const auto* const begin = reinterpret_cast<const std::byte*>(received.begin());
    return std::vector<std::byte>(begin, begin + received.size());
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::overloaded, "out of memory for the model or version received"};
  }
}

/// Receives one source daemon's part. Belongs to the connection's event loop.
class PartSink final : public CountedService<schema::ReplicaSink> {
 public:
  PartSink(std::shared_ptr<Connection> connection, Administration& administration, uint64_t move,
           uint32_t part)
      : CountedService(std::move(connection)), administration_(administration), move_(move), part_(part) {}

 protected:
  kj::Promise<void> image(ImageContext context) override {
    const auto params = context.getParams();
    auto bytes = copyOf(params.getBytes());
    if (!bytes.ok()) {
      answering(context)(bytes.status());
      return kj::READY_NOW;
    }
    ImagePart piece{std::string(wire::textIn(params.getPath())),
                    std::string(wire::textIn(params.getRenamedTo())), *std::move(bytes)};
    context.releaseParams();
    return administration_
        .withMoves([move = move_, part = part_, piece = std::move(piece)](
                       OutgoingMove&, IncomingMove& incoming) { return incoming.image(move, part, piece); })
        .then(answering(context));
  }

  kj::Promise<void> imageDone(ImageDoneContext context) override {
    std::string path(wire::textIn(context.getParams().getPath()));
    context.releaseParams();
    return administration_
        .withMoves(
            [move = move_, part = part_, path = std::move(path)](OutgoingMove&, IncomingMove& incoming) {
              return incoming.imageDone(move, part, path);
            })
        .then(answering(context));
  }

 private:
  Administration& administration_;
  const uint64_t move_;
  const uint32_t part_;
};

/// Receives the file of a published version. Belongs to the connection's event loop.
class VersionSink final : public CountedService<schema::ReplicaSink> {
 public:
  VersionSink(std::shared_ptr<Connection> connection, Administration& administration, uint64_t move,
              uint64_t oldest)
      : CountedService(std::move(connection)),
        administration_(administration),
        move_(move),
        oldest_(oldest) {}

 protected:
  kj::Promise<void> image(ImageContext context) override {
    auto bytes = copyOf(context.getParams().getBytes());
    if (!bytes.ok()) {
      answering(context)(bytes.status());
      return kj::READY_NOW;
    }
    context.releaseParams();
    return administration_
        .withMoves([move = move_, bytes = *std::move(bytes)](OutgoingMove&, IncomingMove& incoming) {
          return incoming.versionImage(move, bytes);
        })
        .then(answering(context));
  }

  kj::Promise<void> imageDone(ImageDoneContext context) override {
    context.releaseParams();
    return administration_
        .withMoves([move = move_, oldest = oldest_](OutgoingMove&, IncomingMove& incoming) {
          return incoming.versionDone(move, oldest);
        })
        .then(answering(context));
  }

 private:
  Administration& administration_;
  const uint64_t move_, oldest_;
};

/// Sends the contents of the stream to a sink, with several parts in flight.
kj::Promise<Status> send(ImageStream& stream, SinkLink& sink) {
  return stream.whenFilled().then([&stream, &sink]() -> kj::Promise<Status> {
    kj::Vector<kj::Promise<Status>> sent;
    while (sent.size() < kPartsAtOnce) {
      auto part = stream.take();
      if (!part) break;
      sent.add(sink.image(*std::move(part)));
    }
    if (sent.empty()) return Status();
    return kj::joinPromises(sent.releaseAsArray()).then([&stream, &sink](kj::Array<Status> done) {
      for (const Status& status : done) {
        if (!status.ok()) return kj::Promise<Status>(Status(status));
      }
      return send(stream, sink);
    });
  });
}

std::set<Rank> readRanks(capnp::List<uint32_t>::Reader list) {
  std::set<Rank> ranks;
  for (const uint32_t rank : list) ranks.insert(Rank{rank});
  return ranks;
}

void writeRanks(const std::set<Rank>& ranks, capnp::List<uint32_t>::Builder out) {
  kj::uint i = 0;
  for (const Rank rank : ranks) out.set(i++, rank.value);
}

void writeTexts(const std::set<std::string>& texts, capnp::List<capnp::Text>::Builder out) {
  kj::uint i = 0;
  for (const std::string& text : texts) out.set(i++, text.c_str());
}

std::set<std::string> readTexts(capnp::List<capnp::Text>::Reader list) {
  std::set<std::string> texts;
  for (const auto text : list) texts.emplace(wire::textIn(text));
  return texts;
}

}  // namespace

void writeTerms(const MoveTerms& terms, schema::MoveTerms::Builder out) {
  out.setRules(terms.rules.c_str());
  out.setWorldSize(terms.worldSize);
  const auto count = [](const auto& list) { return static_cast<kj::uint>(list.size()); };
  writeTexts(terms.codecs.push, out.initPushCodecs(count(terms.codecs.push)));
  writeTexts(terms.codecs.pull, out.initPullCodecs(count(terms.codecs.pull)));
  out.setDaemon(terms.lead.daemon);
  auto addresses = out.initAddresses(count(terms.lead.addresses));
  for (kj::uint i = 0; i < addresses.size(); i++) addresses.set(i, terms.lead.addresses[i].c_str());
  if (!terms.versions) return;
  auto versions = out.initVersions();
  versions.setDurable(terms.versions->durable);
  versions.setBytes(terms.versions->bytes);
}

Result<MoveTerms> readTerms(schema::MoveTerms::Reader in) {
  if (in.getAddresses().size() > kMoveLeadAddressesMax) {
    return Error{ErrorCode::invalidArgument,
                 "a daemon has at most " + std::to_string(kMoveLeadAddressesMax) + " addresses"};
  }
  MoveTerms terms{std::string(wire::textIn(in.getRules())),
                  in.getWorldSize(),
                  {readTexts(in.getPushCodecs()), readTexts(in.getPullCodecs())},
                  {in.getDaemon(), {}}};
  for (const auto address : in.getAddresses()) {
    terms.lead.addresses.push_back(printable(wire::textIn(address), 500));
  }
  if (in.hasVersions()) {
    const auto versions = in.getVersions();
    terms.versions = VersionTerms{versions.getDurable(), versions.getBytes()};
  }
  return terms;
}

// --- Source ----------------------------------------------------------------------------------------------

LeavingService::~LeavingService() noexcept(false) {
  if (!connection_->loop().running()) return;
  connection_->loop().detach(administration_.withMoves(
      [move = move_](OutgoingMove& outgoing, IncomingMove&) { outgoing.abandon(move, "psd move ended"); }));
}

kj::Promise<void> LeavingService::quiesced(QuiescedContext context) {
  context.releaseParams();
  context.allowCancellation();
  auto quiet = administration_.withMoves(
      [move = move_](OutgoingMove& outgoing, IncomingMove&) { return outgoing.whenQuiesced(move); });
  return connection_->parked(kj::mv(quiet)).then([context](const Result<QuiescedModel>& quiet) mutable {
    if (!quiet.ok()) return wire::writeError(quiet.error(), context.getResults().initError());
    const MovedTrainers& trainers = quiet->trainers;
    auto out = context.getResults().initQuiesced();
    out.setWorldSize(trainers.departed.worldSize);
    writeRanks(trainers.departed.ranks,
               out.initDeparted(static_cast<kj::uint>(trainers.departed.ranks.size())));
    writeRanks(trainers.ranks, out.initRanks(static_cast<kj::uint>(trainers.ranks.size())));
    writeTerms(quiet->terms, out.initTerms());
    if (quiet->versions) writeContinuation(*quiet->versions, out.initVersions());
  });
}

kj::Promise<void> LeavingService::give(GiveContext context) {
  const auto params = context.getParams();
  const OutgoingMove::Range range{params.getBegin(), params.getCount()};
  auto sink = params.getSink();
  context.releaseParams();
  context.allowCancellation();
  return sendImage(kj::mv(sink), connection_,
                   [this, range](std::shared_ptr<ImageStream> stream) {
                     return administration_.withMoves(
                         [move = move_, range, stream](OutgoingMove& outgoing, IncomingMove&) {
                           return outgoing.give(move, range, stream);
                         });
                   })
      .then(answering(context));
}

kj::Promise<Status> sendImage(
    schema::ReplicaSink::Client client, std::shared_ptr<Connection> connection,
    const std::function<kj::Promise<Result<std::string>>(std::shared_ptr<ImageStream> stream)>& write) {
  auto sink = kj::heap<SinkLink>(kj::mv(client), std::move(connection));
  auto stream = std::make_shared<ImageStream>(kPartBytes);
  auto given = write(stream)
                   .then([stream](Result<std::string> path) {
                     stream->finish();
                     return path;
                   })
                   .eagerlyEvaluate(nullptr);
  SinkLink& to = *sink;
  return send(*stream, to)
      .then([stream, given = kj::mv(given)](Status sent) mutable {
        if (!sent.ok()) stream->end();  // unblocks the writer
        return given.then([sent](Result<std::string> path) -> Result<std::string> {
          if (!sent.ok()) return sent.error();
          return path;
        });
      })
      .then([&to](Result<std::string> path) -> kj::Promise<Status> {
        if (!path.ok()) return path.status();
        return path->empty() ? kj::Promise<Status>(Status()) : to.imageDone(*path);
      })
      .attach(kj::defer([stream] { stream->end(); }), kj::mv(sink));
}

kj::Promise<void> LeavingService::commit(CommitContext context) {
  context.releaseParams();
  auto done =
      administration_
          .withMoves([move = move_](OutgoingMove& outgoing, IncomingMove&) { return outgoing.commit(move); })
          .then(answering(context));
  return connection_->untilOutcome(kj::mv(done));  // the daemon ends after the commit
}

kj::Promise<void> LeavingService::heartbeat(HeartbeatContext context) {
  context.releaseParams();
  return administration_.withMoves(
      [move = move_](OutgoingMove& outgoing, IncomingMove&) { outgoing.onHeartbeat(move); });
}

// --- Target ----------------------------------------------------------------------------------------------

ArrivingService::~ArrivingService() noexcept(false) {
  if (!connection_->loop().running()) return;
  connection_->loop().detach(administration_.withMoves(
      [move = move_](OutgoingMove&, IncomingMove& incoming) { incoming.abandon(move); }));
}

kj::Promise<void> ArrivingService::sink(SinkContext context) {
  const uint32_t part = context.getParams().getPart();
  context.getResults().setSink(kj::heap<PartSink>(connection_, administration_, move_, part));
  return kj::READY_NOW;
}

kj::Promise<void> ArrivingService::versionSink(VersionSinkContext context) {
  const uint64_t oldest = context.getParams().getOldest();
  context.getResults().setSink(kj::heap<VersionSink>(connection_, administration_, move_, oldest));
  return kj::READY_NOW;
}

kj::Promise<void> ArrivingService::check(CheckContext context) {
  const auto params = context.getParams();
  auto terms = readTerms(params.getTerms());
  auto whole = wire::readModel(params.getModel());
  context.releaseParams();
  if (!terms.ok() || !whole.ok()) {
    wire::writeStatus(terms.ok() ? whole.status() : terms.status(), context.getResults().initStatus());
    return kj::READY_NOW;
  }
  return administration_
      .withMoves([move = move_, terms = *std::move(terms), whole = *std::move(whole)](
                     OutgoingMove&, IncomingMove& incoming) { return incoming.check(move, terms, whole); })
      .then(answering(context));
}

kj::Promise<void> ArrivingService::giveUp(GiveUpContext context) {
  context.releaseParams();
  return administration_
      .withMoves([move = move_](OutgoingMove&, IncomingMove& incoming) { return incoming.giveUp(move); })
      .then(answering(context));
}

kj::Promise<void> ArrivingService::install(InstallContext context) {
  const auto params = context.getParams();
  MovedTrainers trainers{{params.getWorldSize(), readRanks(params.getDeparted())},
                         readRanks(params.getRanks())};
  std::optional<VersionsContinuation> versions;
  if (params.hasVersions()) versions = readContinuation(params.getVersions());
  context.releaseParams();
  return administration_
      .withMoves([move = move_, trainers = std::move(trainers), versions = std::move(versions)](
                     OutgoingMove&, IncomingMove& incoming) mutable {
        return incoming.install(move, std::move(trainers), std::move(versions));
      })
      .then([context](const Result<uint64_t>& rows) mutable {
        if (!rows.ok()) return wire::writeError(rows.error(), context.getResults().initError());
        context.getResults().setRows(*rows);
      });
}

kj::Promise<void> ArrivingService::commit(CommitContext context) {
  context.releaseParams();
  return administration_
      .withMoves([move = move_](OutgoingMove&, IncomingMove& incoming) { return incoming.commit(move); })
      .then(answering(context));
}

kj::Promise<void> ArrivingService::heartbeat(HeartbeatContext context) {
  context.releaseParams();
  return administration_.withMoves(
      [move = move_](OutgoingMove&, IncomingMove& incoming) { incoming.onHeartbeat(move); });
}

}  // namespace psd

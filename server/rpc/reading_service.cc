#include "server/rpc/reading_service.h"

#include <utility>

#include "common/config/json_file.h"
#include "common/text/text.h"
#include "common/wire/convert.h"
#include "common/wire/login.h"
#include "server/client/refusal.h"
#include "server/rpc/model_access.h"
#include "server/rpc/pull_calls.h"
#include "server/status/status_json.h"

namespace psd {
namespace {

/// A peer that pulls without being a trainer. Belongs to the connection's loop.
class ReaderService final : public CountedService<schema::Reader> {
 public:
  /// `codec`: of pulls; null: float32 only.
  ReaderService(std::shared_ptr<Connection> connection, std::shared_ptr<ServedModel> model,
                std::shared_ptr<const Codec> codec, const SliceEncoder& encoder)
      : CountedService(std::move(connection)),
        codec_(std::move(codec)),
        service_(connection_->loop(), std::move(model), std::nullopt, nullptr, codec_.get(), encoder),
        pulls_(connection_, service_) {}

 protected:
  kj::Promise<void> pull(PullContext context) override { return pulls_.pull(context); }
  kj::Promise<void> pullRows(PullRowsContext context) override { return pulls_.pullRows(context); }
  kj::Promise<void> buffers(BuffersContext context) override { return pulls_.buffers(context); }

 private:
  const std::shared_ptr<const Codec> codec_;
  PullService service_;
  PullCalls pulls_;
};

}  // namespace

kj::Promise<void> ReadingService::observe(ObserveContext context) {
  auto refuse = [context](const Error& error) mutable -> kj::Promise<void> {
    wire::writeError(error, context.getResults().initError());
    return kj::READY_NOW;
  };
  if (auto may = connection_->mayServe(); !may.ok()) return refuse(may.error());
  auto model = wire::readModel(context.getParams().getModel());
  if (!model.ok()) return refuse(model.error());
  auto codec = joins_.agreeWithReader(printable(wire::textIn(context.getParams().getPullCodec())));
  if (!codec.ok()) return refuse(codec.error());
  context.releaseParams();
  context.allowCancellation();
  return joins_.observe(*std::move(model))
      .then([this, context, refuse, codec = *std::move(codec)](
                Result<std::shared_ptr<ServedModel>> served) mutable -> kj::Promise<void> {
        if (!served.ok()) return refuse(served.error());
        const uint64_t bytes = accessBytes(**served) + modelBytes((*served)->store->model());
        auto make = [this, context, codec = std::move(codec), served = *std::move(served)]() mutable {
          auto out = context.getResults().initObserving();
          out.setPullCodec(codec ? codec->spec().c_str() : "none");
          writeAccess(*served, *connection_, out.initAccess());
          wire::writeModel(served->store->model(), out.initModel());
          out.setReader(kj::heap<ReaderService>(connection_, std::move(served), std::move(codec), encoder_));
        };
        return connection_->answerWithin(bytes, std::move(make), std::move(refuse));
      });
}

kj::Promise<void> ReadingService::status(StatusContext context) {
  context.releaseParams();
  context.allowCancellation();
  // Limits the load on the control loop, which builds the status.
  if (waitsForStatus_) return KJ_EXCEPTION(OVERLOADED, "this connection already waits for a status");
  waitsForStatus_ = true;
  return administration_.statusBytes()
      .then([this, context](uint64_t bytes) mutable {
        auto make = [this, context]() mutable {
          return administration_.status().then([this, context](const DaemonStatus& status) mutable {
            const std::string text = jsonText(statusJson(status));
            administration_.noteStatusBytes(text.size());
            context.getResults().setJson(text.c_str());
          });
        };
        return connection_->answerWithin(bytes, std::move(make), throwRefusal);
      })
      .attach(kj::defer([this] { waitsForStatus_ = false; }));
}

kj::Promise<void> ReadingService::waiters(WaitersContext context) {
  context.releaseParams();
  context.allowCancellation();
  if (waitsForStatus_) return KJ_EXCEPTION(OVERLOADED, "this connection already waits for a status");
  waitsForStatus_ = true;
  return administration_.waiters()
      .then([context](const std::vector<uint32_t>& ranks) mutable {
        context.getResults().setRanks(kj::arrayPtr(ranks.data(), ranks.size()));
      })
      .attach(kj::defer([this] { waitsForStatus_ = false; }));
}

kj::Promise<void> ReadingService::takeover(TakeoverContext context) {
  const uint64_t known = context.getParams().getKnown(), primary = context.getParams().getPrimary();
  context.releaseParams();
  context.allowCancellation();
  if (waitsForTakeover_) return KJ_EXCEPTION(OVERLOADED, "this connection already waits for a takeover");
  waitsForTakeover_ = true;
  return connection_->parked(administration_.whenServing(known, primary))
      .then([context](uint64_t term) mutable { context.getResults().setTerm(term); })
      .attach(kj::defer([this] { waitsForTakeover_ = false; }));
}

kj::Promise<void> ReadingService::moved(MovedContext context) {
  context.releaseParams();
  context.allowCancellation();
  if (waitsForMove_) return KJ_EXCEPTION(OVERLOADED, "this connection already waits for a move");
  waitsForMove_ = true;
  return connection_->parked(administration_.whenMoved())
      .then([context](const RecordedMove& place) mutable {
        auto results = context.getResults();
        wire::writeDaemonAddresses(place.to, results.initTo(static_cast<kj::uint>(place.to.size())));
        results.setMove(place.move);
      })
      .attach(kj::defer([this] { waitsForMove_ = false; }));
}

kj::Promise<void> ReadingService::hotRows(HotRowsContext context) {
  context.releaseParams();
  context.allowCancellation();
  auto refuse = [context](const Error& error) mutable {
    wire::writeError(error, context.getResults().initStatus().initError());
  };
  return administration_.hotRowsBytes().then([this, context, refuse](uint64_t bytes) mutable {
    auto make = [this, context]() mutable {
      return administration_.hotRows().then([context](const Result<HotRowsStatus>& rows) mutable {
        auto results = context.getResults();
        wire::writeStatus(rows.status(), results.initStatus());
        if (rows.ok()) results.setJson(jsonText(statusJson(*rows)).c_str());
      });
    };
    return connection_->answerWithin(bytes, std::move(make), std::move(refuse));
  });
}

}  // namespace psd

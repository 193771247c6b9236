#include "server/rpc/reading_service.h"

#include <utility>

#include "common/wire/convert.h"
#include "server/rpc/model_access.h"
#include "server/rpc/pull_calls.h"

namespace psd {
namespace {

/// A peer that reads without being a trainer. Belongs to the connection's loop.
class ReaderService final : public CountedService<schema::Reader> {
 public:
  ReaderService(std::shared_ptr<Connection> connection, std::shared_ptr<ServedModel> model)
      : CountedService(std::move(connection)),
        service_(connection_->loop(), std::move(model), std::nullopt, nullptr, nullptr),
        pulls_(connection_, service_) {}

 protected:
  kj::Promise<void> pull(PullContext context) override { return pulls_.pull(context); }
  kj::Promise<void> pullRows(PullRowsContext context) override { return pulls_.pullRows(context); }

 private:
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
  context.releaseParams();
  return joins_.observe(*std::move(model))
      .then(
          [this, context, refuse](Result<std::shared_ptr<ServedModel>> served) mutable -> kj::Promise<void> {
            if (!served.ok()) return refuse(served.error());
            auto out = context.getResults().initObserving();
            writeAccess(**served, *connection_, out.initAccess());
            wire::writeModel((*served)->store->model(), out.initModel());
            out.setReader(kj::heap<ReaderService>(connection_, std::move(*served)));
            return kj::READY_NOW;
          });
}

}  // namespace psd

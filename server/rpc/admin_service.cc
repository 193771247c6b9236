#include "server/rpc/admin_service.h"

#include "common/config/json_file.h"
#include "common/text/text.h"
#include "common/wire/convert.h"
#include "server/status/status_json.h"

namespace psd {

kj::Promise<void> AdminService::reload(ReloadContext context) {
  context.releaseParams();
  return administration_.reload().then([context](Result<std::string> change) mutable {
    auto results = context.getResults();
    wire::writeStatus(change.status(), results.initStatus());
    if (change.ok()) results.setChange(change->c_str());
  });
}

kj::Promise<void> AdminService::checkpoint(CheckpointContext context) {
  context.releaseParams();
  return administration_.checkpoint().then([context](Result<std::string> path) mutable {
    auto results = context.getResults();
    wire::writeStatus(path.status(), results.initStatus());
    if (path.ok()) results.setPath(path->c_str());
  });
}

kj::Promise<void> AdminService::removeTrainer(RemoveTrainerContext context) {
  const Rank rank{context.getParams().getRank()};
  context.releaseParams();
  return administration_.removeTrainer(rank).then([context](Result<std::string> removed) mutable {
    auto results = context.getResults();
    wire::writeStatus(removed.status(), results.initStatus());
    if (removed.ok()) results.setRemoved(removed->c_str());
  });
}

kj::Promise<void> AdminService::set(SetContext context) {
  std::string assignment(wire::textIn(context.getParams().getAssignment()));
  context.releaseParams();
  return administration_.set(std::move(assignment)).then([context](Result<std::string> change) mutable {
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
  if (follows_) return KJ_EXCEPTION(OVERLOADED, "this connection waits for events already");
  follows_ = true;
  return administration_.events(after, wait)
      .then([context](const DaemonEvents& events) mutable {
        context.getResults().setJson(jsonText(statusJson(events)).c_str());
      })
      .attach(kj::defer([this] { follows_ = false; }));
}

kj::Promise<void> AdminService::stop(StopContext context) {
  auto reason = context.getParams().getReason();
  std::string text = "asked by " + connection_->peer();
  if (reason.size() > 0) text += ": " + printable({reason.begin(), reason.size()});
  const bool wait = context.getParams().getWait();
  context.releaseParams();
  auto done = administration_.stop(text, wait).then([context](const Status& status) mutable {
    wire::writeStatus(status, context.getResults().initStatus());
  });
  return wait ? connection_->untilOutcome(kj::mv(done)) : kj::mv(done);
}

}  // namespace psd

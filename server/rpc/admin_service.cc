#include "server/rpc/admin_service.h"

#include "common/config/json_file.h"
#include "common/text/text.h"
#include "common/wire/convert.h"
#include "server/status/status_json.h"

namespace psd {

kj::Promise<void> AdminService::status(StatusContext context) {
  context.releaseParams();
  context.allowCancellation();
  // The control loop, which makes it, has other things to do as well.
  if (asked_) return KJ_EXCEPTION(OVERLOADED, "this connection waits for a status already");
  asked_ = true;
  return administration_.status()
      .then([context](const DaemonStatus& status) mutable {
        context.getResults().setJson(jsonText(statusJson(status)).c_str());
      })
      .attach(kj::defer([this] { asked_ = false; }));
}

kj::Promise<void> AdminService::hotRows(HotRowsContext context) {
  context.releaseParams();
  return administration_.hotRows().then([context](const Result<HotRowsStatus>& rows) mutable {
    auto results = context.getResults();
    wire::writeStatus(rows.status(), results.initStatus());
    if (rows.ok()) results.setJson(jsonText(statusJson(*rows)).c_str());
  });
}

kj::Promise<void> AdminService::reload(ReloadContext context) {
  context.releaseParams();
  return administration_.reload().then([context](Result<std::string> change) mutable {
    auto results = context.getResults();
    wire::writeStatus(change.status(), results.initStatus());
    if (change.ok()) results.setChange(change->c_str());
  });
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

#include "server/rpc/admin_service.h"

#include "common/config/json_file.h"
#include "common/text/text.h"
#include "common/wire/convert.h"
#include "server/control/control.h"
#include "server/status/status_json.h"

namespace psd {

kj::Promise<void> AdminService::status(StatusContext context) {
  context.releaseParams();
  context.allowCancellation();
  // The control loop, which makes it, has other things to do as well.
  if (asked_) return KJ_EXCEPTION(OVERLOADED, "this connection waits for a status already");
  asked_ = true;
  return loop_.onControl([this](Control&) { return jsonText(statusJson(loop_.environment().status())); })
      .then([context](std::string json) mutable { context.getResults().setJson(json.c_str()); })
      .attach(kj::defer([this] { asked_ = false; }));
}

kj::Promise<void> AdminService::reload(ReloadContext context) {
  context.releaseParams();
  return loop_.onControl([this](Control&) { return loop_.environment().reload(); })
      .then([context](Result<std::string> change) mutable {
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
  auto done = loop_
                  .onControl([text, wait](Control& control) -> kj::Promise<Status> {
                    control.requestStop(text);
                    return wait ? control.end().whenOutcome() : kj::Promise<Status>(Status());
                  })
                  .then([context](Status status) mutable {
                    wire::writeStatus(status, context.getResults().initStatus());
                  });
  return wait ? connection_->untilOutcome(kj::mv(done)) : kj::mv(done);
}

}  // namespace psd

#include "server/rpc/admin_service.h"

#include "common/text/text.h"
#include "common/wire/convert.h"

namespace psd {

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

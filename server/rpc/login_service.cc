#include "server/rpc/login_service.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>

#include "common/text/text.h"
#include "common/wire/convert.h"
#include "server/rpc/admin_service.h"
#include "server/rpc/reading_service.h"
#include "server/rpc/training_service.h"

namespace psd {

kj::Promise<void> LoginService::login(LoginContext context) {
  auto params = context.getParams();
  const std::string name = printable(wire::textIn(params.getPeer()), 80);
  auto results = context.getResults();
  results.setProtocolVersion(wire::kProtocolVersion);
  results.setServerVersion(PSD_VERSION);
  if (params.getProtocolVersion() != wire::kProtocolVersion) {
    const Error error{
        ErrorCode::protocolMismatch,
        fmt::format("protocol version {} ({}); this daemon, psd " PSD_VERSION ", speaks version {}",
                    params.getProtocolVersion(), name, wire::kProtocolVersion)};
    spdlog::warn("refused {}: {}", connection_->peer(), error.message);
    wire::writeError(error, results.initStatus().initError());
    return kj::READY_NOW;
  }
  if (roles_ == nullptr) {
    connection_->setPeer(name);
    roles_ = Roles{kj::heap<ReadingService>(connection_, control_),
                   kj::heap<TrainingService>(connection_, control_),
                   kj::heap<AdminService>(connection_, administration_)};
  }
  Roles& roles = KJ_ASSERT_NONNULL(roles_);
  results.initStatus().setOk();
  results.setReading(roles.reading);
  results.setTraining(roles.training);
  results.setAdmin(roles.admin);
  return kj::READY_NOW;
}

}  // namespace psd

#include "server/rpc/login_service.h"

#include <spdlog/fmt/fmt.h>

#include "common/log/log_line.h"
#include "common/text/text.h"
#include "common/wire/convert.h"
#include "server/rpc/admin_service.h"
#include "server/rpc/publishing_service.h"
#include "server/rpc/reading_service.h"
#include "server/rpc/training_service.h"

namespace psd {
namespace {

constexpr kj::Duration kFailureDelay = 500 * kj::MILLISECONDS;

DaemonAddresses placesOf(const DaemonsConfig& daemons) {
  DaemonAddresses places;
  for (const auto& addresses : daemons.addresses) {
    auto& of = places.emplace_back();
    for (const Address& address : addresses) of.push_back(address.toString());
  }
  return places;
}

/// Writes the daemons that serve the model.
void writeDaemons(const DaemonsConfig& daemons, schema::LoginResult::Builder out) {
  if (!daemons.several()) return;
  const DaemonAddresses places = placesOf(daemons);
  wire::writeDaemonAddresses(places, out.initDaemons(static_cast<kj::uint>(places.size())));
  out.setDaemon(daemons.index);
}

}  // namespace

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
    logLine(spdlog::level::warn, {.event = "login_refused", .peer = connection_->peer(), .limited = true},
            "refused {}: {}", connection_->peer(), error.message);
    wire::writeError(error, results.initStatus().initError());
    return kj::READY_NOW;
  }
  const auto caller = connection_->caller().logIn(wire::textIn(params.getToken()), name);
  if (!caller.ok()) return refuse(context, caller.error());
  if (roles_ == nullptr) roles_ = rolesOf(caller->role);
  Roles& roles = KJ_ASSERT_NONNULL(roles_);
  writeDaemons(connection_->loop().config().daemons, results);
  if (const auto away = connection_->loop().environment().serving.moved(); away.move != 0) {
    wire::writeDaemonAddresses(away.to, results.initMovedTo(static_cast<kj::uint>(away.to.size())));
    results.setMove(away.move);
  }
  results.initStatus().setOk();
  results.setCaller(caller->name.c_str());
  results.setRole(std::string(roleName(caller->role)).c_str());
  results.setReading(roles.reading);
  KJ_IF_MAYBE (publishing, roles.publishing) results.setPublishing(*publishing);
  KJ_IF_MAYBE (training, roles.training) results.setTraining(*training);
  KJ_IF_MAYBE (admin, roles.admin) results.setAdmin(*admin);
  return kj::READY_NOW;
}

kj::Promise<void> LoginService::moveOutcome(MoveOutcomeContext context) {
  const uint64_t move = context.getParams().getMove(), daemon = context.getParams().getDaemon();
  context.releaseParams();
  return administration_.moveOutcome(move, daemon).then([context](MoveOutcome outcome) mutable {
    context.getResults().setOutcome(static_cast<schema::MoveOutcome>(outcome));
  });
}

LoginService::Roles LoginService::rolesOf(Role role) {
  Roles roles{kj::heap<ReadingService>(connection_, control_, administration_), nullptr, nullptr, nullptr};
  if (includes(role, Role::publisher)) {
    roles.publishing = kj::heap<PublishingService>(connection_, administration_);
  }
  if (includes(role, Role::trainer)) roles.training = kj::heap<TrainingService>(connection_, control_);
  if (includes(role, Role::admin)) roles.admin = kj::heap<AdminService>(connection_, administration_);
  return roles;
}

kj::Promise<void> LoginService::refuse(LoginContext context, const Error& error) {
  context.releaseParams();
  context.allowCancellation();
  EventLoop& loop = connection_->loop();
  loop.environment().counters.loginsRefused.add();
  logLine(spdlog::level::warn, {.event = "login_refused", .peer = connection_->peer(), .limited = true},
          "refused the login of {}: {}", connection_->peer(), error.message);
  auto held = authenticator_.delayReply();
  if (connection_->caller().failedTooOften(loop.now() + kFailureDelay) || held == nullptr) {
    loop.connections().drop(*connection_, held == nullptr ? "too many failed logins wait for their answers"
                                                          : "too many failed logins");
    return kj::NEVER_DONE;  // cancelled with the connection
  }
  return loop.timer().afterDelay(kFailureDelay).then([context, error, held]() mutable {
    wire::writeError(error, context.getResults().initStatus().initError());
  });
}

}  // namespace psd

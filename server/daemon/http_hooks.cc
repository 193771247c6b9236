#include "server/daemon/http_hooks.h"

#include <cmath>
#include <memory>
#include <utility>

#include <fmt/format.h>
#include <strings.h>

#include "common/log/log_line.h"
#include "server/daemon/overview.h"

namespace psd {
namespace {

using Json = nlohmann::ordered_json;
using Outcome = Result<std::string>;

std::string jsonOfSeries(const ThinnedSeries& series) {
  std::string text = "[";
  for (const ReportedPoint& point : series.points()) {
    text += fmt::format("{}[{:.1f},{},", text.size() > 1 ? "," : "", point.time, point.step);
    text += std::isfinite(point.value) ? fmt::format("{:.7g}]", point.value) : "null]";
  }
  return text + "]";
}

/// Names need no escaping: validateReport().
std::string jsonOfReports(const ReportBook& reports) {
  std::string text = "{";
  for (const auto& [rank, entry] : reports.ranks()) {
    text += fmt::format("{}\"{}\":{{", text.size() > 1 ? "," : "", rank.value);
    char before = 0;
    for (const auto& [name, series] : entry.series) {
      if (before != 0) text += before;
      text += fmt::format("\"{}\":{}", name, jsonOfSeries(series));
      before = ',';
    }
    text += "}";
  }
  return text + "}";
}

HttpAccess accessOf(const Identity& identity, const HttpPeer& peer) {
  return {identity.role == Role::admin ? HttpRole::admin : HttpRole::reader, identity.caller,
          (identity.caller.empty() ? "" : identity.caller + " at ") + peer.where + " over HTTP"};
}

/// If authentication is required, a token decides, or a certificate if there is no token.
HttpAccess accessOf(Server& server, const HttpCaller& caller) {
  constexpr std::string_view kScheme = "Bearer ";
  const Authenticator& authenticator = server.authenticator();
  const HttpPeer& peer = caller.peer;
  if (!authenticator.authenticationRequired()) {
    const Result<Access> access =
        authenticator.logIn({}, {.where = {}, .user = peer.user, .certificateNames = peer.certificateNames});
    return accessOf(access.ok() ? access->identity : Identity{{}, Role::admin}, peer);
  }
  if (strncasecmp(caller.authorization.c_str(), kScheme.data(), kScheme.size()) != 0) {
    const std::vector<std::string>& names = peer.certificateNames;
    if (names.empty()) return {};
    const Result<Access> access = authenticator.logIn({}, {.where = {}, .certificateNames = names});
    return access.ok() ? accessOf(access->identity, peer) : HttpAccess();
  }
  const Result<Identity> identity =
      authenticator.byToken(std::string_view(caller.authorization).substr(kScheme.size()));
  if (!identity.ok()) {
    server.metrics().loginsRefused.add();
    logLine(spdlog::level::warn, {.event = "login_refused", .peer = peer.where, .limited = true},
            "refused a request over HTTP from {}: {}", peer.where, identity.error().message);
    return {HttpRole::stranger, {}, {}, identity.error().message};
  }
  return accessOf(*identity, peer);
}

/// The integer `key`, the only argument that the action takes.
Result<uint32_t> onlyInteger(const Json& arguments, const std::string& key) {
  const auto found = arguments.find(key);
  if (arguments.size() == 1 && found != arguments.end() && found->is_number_unsigned() &&
      found->get<uint64_t>() <= UINT32_MAX) {
    return found->get<uint32_t>();
  }
  return Error{ErrorCode::invalidArgument, fmt::format("the body must be {{\"{}\": N}}", key)};
}

}  // namespace

HttpHooks httpHooksOf(Server& server, kj::Timer& timer) {
  HttpHooks hooks;
  hooks.status = [&server] { return server.status(); };
  hooks.reports = [&server] { return jsonOfReports(server.coordinator().reports()); };
  hooks.events = [&server] { return server.coordinator().events().after(0); };
  if (std::shared_ptr<Overview> overview = Overview::make(server, timer)) {
    hooks.daemons = [overview](const DaemonStatus& status) { return overview->rows(status); };
    hooks.polledDaemons = [overview] { return overview->refreshedRows(); };
    hooks.whenDaemonsCached = [overview] { return overview->whenRefreshedOnce(); };
    hooks.cachedDaemons = [overview](const DaemonStatus& status) { return overview->seen(status); };
  }
  hooks.config = [&server] {
    const LoadedConfig& loaded = server.loaded();
    return Json{{"config", loaded.effective}, {"changed", loaded.offDefault}};
  };
  hooks.accessOf = [&server](const HttpCaller& caller) { return accessOf(server, caller); };
  hooks.reserve = [&server](uint64_t bytes) { return server.reserveAnswer(bytes); };
  hooks.tls = [&server] { return server.tlsAcceptor().context(); };
  hooks.handshakeRefused = [&server](const std::string& why) {
    server.metrics().handshakesRefused.add();
    logLine(spdlog::level::warn, {.event = "handshake_refused", .limited = true},
            "refused a connection over HTTP: {}", why);
  };
  Administration& administration = server.administration();
  hooks.actions["reload"] = [&administration](const Json&, const std::string& by) {
    return administration.reload(by);
  };
  hooks.actions["checkpoint"] = [&administration](const Json&, const std::string& by) {
    return administration.checkpoint(by).then([](Outcome path) -> Outcome {
      if (!path.ok()) return path;
      return *path + " is complete";
    });
  };
  hooks.actions["remove"] = [&administration](const Json& arguments,
                                              const std::string& by) -> kj::Promise<Outcome> {
    const Result<uint32_t> rank = onlyInteger(arguments, "rank");
    if (!rank.ok()) return Outcome(rank.error());
    return administration.removeTrainer(Rank{*rank}, by).then([](Outcome removed) -> Outcome {
      if (!removed.ok()) return removed;
      return *removed + " was removed";
    });
  };
  hooks.actions["stop"] = [&administration](const Json&, const std::string& by) {
    return administration.stop("asked by " + by, /*wait=*/false, by).then([](const Status& status) {
      return status.ok() ? Outcome("the daemon is stopping") : Outcome(status.error());
    });
  };
  return hooks;
}

}  // namespace psd

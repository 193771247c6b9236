#include "server/daemon/http_hooks.h"

#include <utility>

namespace psd {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

HttpHooks httpHooksOf(Server& server) {
  HttpHooks hooks;
  hooks.status = [&server] { return server.status(); };
  hooks.roleOf = [](const HttpCaller&) { return HttpRole::admin; };
  hooks.actions["reload"] = [&server](const Json&) { return server.administration().reload(); };
  hooks.actions["stop"] = [&server](const Json&) {
    return server.administration().stop("asked over HTTP", false).then([](Status status) {
      return status.ok() ? Result<std::string>("the daemon ends") : Result<std::string>(status.error());
    });
  };
  return hooks;
}

}  // namespace psd

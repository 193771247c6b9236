#include "server/http/site.h"

#include <utility>

#include <spdlog/spdlog.h>

#include "common/config/json_file.h"
#include "common/http/header_text.h"
#include "common/http/metric_writer.h"
#include "common/os/address.h"
#include "common/text/text.h"
#include "server/http/assets.h"
#include "server/http/exposition.h"
#include "server/status/status_json.h"

namespace psd {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kEvents = "/api/events";
constexpr const char* kCaller = "/api/caller.json";
constexpr const char* kJson = "application/json";

std::shared_ptr<const std::string> shared(std::string text) {
  return std::make_shared<const std::string>(std::move(text));
}

}  // namespace

Site::Site(HttpHooks hooks, const HttpConfig& config, const HttpHeaderNames& names, const Replies& replies,
           HttpMetrics& metrics, const History& history, LiveFeeds& feeds)
    : hooks_(std::move(hooks)),
      names_(names),
      replies_(replies),
      metrics_(metrics),
      history_(history),
      feeds_(feeds),
      watchers_(config.connections),
      hosts_(config.listen) {
  addPlaces();
}

void Site::addPlaces() {
  for (const Asset& asset : pageAssets()) {
    auto content = shared(std::string(asset.content));
    places_[std::string(asset.path)] = {
        HttpRole::none, [this, &asset, content](Response& response) {
          return replies_.send(response, {.type = std::string(asset.type), .content = content});
        }};
  }
  places_["/healthz"] = {HttpRole::none,
                         [this](Response& response) { return replies_.text(response, 200, "OK", "ok"); }};
  places_["/readyz"] = {HttpRole::none, [this](Response& response) { return ready(response); }};
  places_["/metrics"] = {
      HttpRole::reader, [this](Response& response) -> kj::Promise<void> {
        if (!hooks_.whenDaemonsCached) return metrics(response);
        return hooks_.whenDaemonsCached().then([this, &response] { return metrics(response); });
      }};
  places_["/api/status.json"] = {HttpRole::reader, [this](Response& response) {
                                   return document(response, kJson, jsonText(statusJson(hooks_.status())));
                                 }};
  places_["/api/daemons.json"] = {
      HttpRole::reader, [this](Response& response) -> kj::Promise<void> {
        if (!hooks_.polledDaemons) return json(response, 200, "OK", statusJson(DaemonRows()));
        return hooks_.polledDaemons().then([this, &response](const DaemonRows& rows) {
          return document(response, kJson, jsonText(statusJson(rows)));
        });
      }};
  places_["/api/history.json"] = {HttpRole::reader, [this](Response& response) {
                                    return document(response, kJson, history_.json(hooks_.reports()));
                                  }};
  places_["/api/config.json"] = {HttpRole::admin, [this](Response& response) {
                                   return document(response, kJson, jsonText(hooks_.config()));
                                 }};
  places_[kCaller] = {HttpRole::reader, nullptr};  // describes the caller
  places_[kEvents] = {HttpRole::reader, nullptr};  // follow()
}

kj::Promise<void> Site::metrics(Response& response) const {
  const DaemonStatus status = hooks_.status();
  const DaemonRows rows = hooks_.cachedDaemons ? hooks_.cachedDaemons(status) : DaemonRows();
  return document(response, MetricWriter::kContentType, exposition(status, metrics_, rows));
}

kj::Promise<void> Site::document(Response& response, std::string type, std::string text) const {
  if (type == kJson) text += '\n';
  auto room = hooks_.reserve(text.size());
  if (room == nullptr) {
    return replies_.text(response, 503, "Service Unavailable",
                         "unread answers have reached limits.all_outgoing_bytes; try again");
  }
  auto sent = replies_.send(response, {.type = std::move(type), .content = shared(std::move(text))});
  return sent.attach(std::move(room));
}

kj::Promise<void> Site::json(Response& response, kj::uint code, kj::StringPtr reason,
                             const Json& document) const {
  return replies_.send(response, {.code = code,
                                  .reason = reason,
                                  .type = "application/json",
                                  .content = shared(jsonText(document) + "\n")});
}

kj::Promise<void> Site::request(const HttpPeer& peer, kj::HttpMethod method, kj::StringPtr url,
                                const kj::HttpHeaders& headers, kj::AsyncInputStream& body,
                                Response& response) {
  metrics_.requests.add();
  // Over TLS the certificate has already identified the daemon to the caller.
  if (!peer.encrypted && !hosts_.knows(headers)) {
    return replies_.text(
        response, 421, "Misdirected Request",
        "Host: names no address that this daemon listens on, neither localhost nor an IP address");
  }
  const std::string_view whole(url.begin(), url.size());
  const std::string path(whole.substr(0, whole.find('?')));
  const bool looks = method == kj::HttpMethod::GET || method == kj::HttpMethod::HEAD;
  if (const auto place = places_.find(path); place != places_.end()) {
    if (!looks) {
      return replies_.send(response, {.code = 405, .reason = "Method Not Allowed", .allow = "GET, HEAD"});
    }
    if (place->second.needed == HttpRole::none) return place->second.answer(response);
    HttpCaller caller = callerOf(peer, headers);
    const HttpAccess access = hooks_.accessOf(caller);
    const HttpRole role = access.role;
    if (role < place->second.needed) return refuse(response, access);
    if (path == kCaller) {
      return json(response, 200, "OK",
                  {{"role", role == HttpRole::admin ? "admin" : "reader"}, {"caller", access.caller}});
    }
    if (path != kEvents) return place->second.answer(response);
    return method == kj::HttpMethod::HEAD ? replies_.text(response, 200, "OK", "")
                                          : follow(response, std::move(caller), role);
  }
  constexpr std::string_view kApi = "/api/";
  const auto action =
      path.starts_with(kApi) ? hooks_.actions.find(path.substr(kApi.size())) : hooks_.actions.end();
  if (action == hooks_.actions.end()) return replies_.text(response, 404, "Not Found", "nothing is here");
  if (method != kj::HttpMethod::POST) {
    return replies_.send(response, {.code = 405, .reason = "Method Not Allowed", .allow = "POST"});
  }
  HttpAccess access = hooks_.accessOf(callerOf(peer, headers));
  if (access.role < HttpRole::admin) return refuse(response, access);
  return act(action->second, std::move(access.who), headers, body, response);
}

HttpCaller Site::callerOf(const HttpPeer& peer, const kj::HttpHeaders& headers) const {
  HttpCaller caller{.authorization = {}, .peer = peer};
  KJ_IF_MAYBE (value, headers.get(names_.authorization)) caller.authorization = value->cStr();
  return caller;
}

kj::Promise<void> Site::refuse(Response& response, const HttpAccess& access) const {
  if (access.role == HttpRole::none) {
    return replies_.text(response, 401, "Unauthorized",
                         "a token is needed, as Authorization: Bearer TOKEN, or over TLS a certificate that "
                         "auth.certificates names");
  }
  if (access.role != HttpRole::stranger)
    return replies_.text(response, 403, "Forbidden", "this token or certificate does not allow that");
  return replies_.late().then(
      [this, &response, why = access.why] { return replies_.text(response, 403, "Forbidden", why); });
}

kj::Promise<void> Site::act(const HttpAction& action, std::string by, const kj::HttpHeaders& headers,
                            kj::AsyncInputStream& body, Response& response) {
  // A page of another site can only send another content type, or is refused at the CORS preflight.
  bool isJson = false;
  KJ_IF_MAYBE (type, headers.get(kj::HttpHeaderId::CONTENT_TYPE))
    isJson = isJsonType({type->begin(), type->size()});
  if (!isJson)
    return replies_.text(response, 415, "Unsupported Media Type", "Content-Type must be application/json");
  KJ_IF_MAYBE (length, body.tryGetLength()) {
    if (*length > kBodyBytesMax) {
      return replies_.text(response, 413, "Payload Too Large", "a body has at most 4096 bytes");
    }
  }
  return replies_.inTime(body.readAllBytes(kBodyBytesMax + 1))
      .then(
          [this, &action, &response, by = std::move(by)](kj::Array<kj::byte> bytes) -> kj::Promise<void> {
            if (bytes.size() > kBodyBytesMax) {
              return replies_.text(response, 413, "Payload Too Large", "a body has at most 4096 bytes");
            }
            return run(action, by, {reinterpret_cast<const char*>(bytes.begin()), bytes.size()}, response);
          },
          [this, &response](kj::Exception&& exception) -> kj::Promise<void> {
            if (exception.getType() == kj::Exception::Type::OVERLOADED) {
              return replies_.text(response, 408, "Request Timeout",
                                   "the body did not arrive within http.timeout_ms");
            }
            if (exception.getType() == kj::Exception::Type::FAILED) {
              return replies_.text(response, 413, "Payload Too Large", "a body has at most 4096 bytes");
            }
            return kj::mv(exception);
          });
}

kj::Promise<void> Site::run(const HttpAction& action, const std::string& by, const std::string& arguments,
                            Response& response) {
  Result<Json> document = parseJson(arguments.empty() ? "{}" : arguments, "the body");
  if (!document.ok() || !document->is_object()) {
    // A parser's message quotes the offending input.
    return json(response, 400, "Bad Request",
                {{"error", document.ok() ? "the body must be an object" : oneLine(document.message(), 500)}});
  }
  auto done = action(*document, by).fork();
  actions_.add(done.addBranch().ignoreResult());  // completes even if the caller disconnects
  return done.addBranch().then([this, &response](Result<std::string> outcome) {
    if (outcome.ok()) return json(response, 200, "OK", {{"message", *outcome}});
    const bool wrong = outcome.error().code == ErrorCode::invalidArgument;
    return json(response, wrong ? 400 : 409, wrong ? "Bad Request" : "Conflict",
                {{"error", outcome.message()}});
  });
}

kj::Promise<void> Site::ready(Response& response) const {
  const std::string state = hooks_.status().state;
  // A standby in sync is ready for its role.
  const bool ready = state == "serving" || state == "standby";
  return replies_.text(response, ready ? 200 : 503, ready ? "OK" : "Service Unavailable", state);
}

kj::Promise<void> Site::follow(Response& response, HttpCaller caller, HttpRole role) {
  auto place = watchers_.enter(role >= HttpRole::admin);
  if (!place) {
    return replies_.text(response, 503, "Service Unavailable",
                         "too many event streams are open: close one, or raise http.connections");
  }
  auto stream = replies_.begin(response, "text/event-stream");
  kj::AsyncOutputStream& out = *stream;
  auto kept = kj::heap<HttpCaller>(std::move(caller));
  const HttpCaller& who = *kept;
  metrics_.watchers.add();
  LiveFeed& feed = feeds_.of(role);
  feed.watchers++;
  return streamNext(out, who, role, 0)
      .exclusiveJoin(kj::mv(place->displaced))
      .attach(kj::mv(place->held), kj::mv(stream), kj::mv(kept), kj::defer([this, &feed] {
                metrics_.watchers.subtract();
                feed.watchers--;
              }));
}

kj::Promise<void> Site::streamNext(kj::AsyncOutputStream& stream, const HttpCaller& caller, HttpRole role,
                                   uint64_t tick) {
  return feeds_.of(role).next(tick).then([this, &stream, &caller,
                                          role](LiveFeed::Document document) -> kj::Promise<void> {
    if (hooks_.accessOf(caller).role < role || document.text == nullptr) return kj::READY_NOW;
    return replies_.write(stream, document.text).then([this, &stream, &caller, role, tick = document.tick] {
      return streamNext(stream, caller, role, tick);
    });
  });
}

void Site::taskFailed(kj::Exception&& exception) {
  spdlog::warn("http: an action failed: {}", exception.getDescription().cStr());
}

}  // namespace psd

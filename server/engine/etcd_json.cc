#include "server/engine/etcd_json.h"

#include <charconv>

#include <kj/encoding.h>
#include <nlohmann/json.hpp>

#include "common/config/json_file.h"
#include "common/text/text.h"

namespace psd::etcd {
namespace {

using Json = nlohmann::ordered_json;

// gRPC status codes.
constexpr uint64_t kInvalidArgument = 3, kPermissionDenied = 7, kUnauthenticated = 16;
constexpr size_t kTokenMax = 4096;  // bytes; a JWT has a few hundred

Error malformed(const std::string& what) {
  return {ErrorCode::unavailable, "its answer is not etcd's: " + what};
}

std::string encoded(const std::string& bytes) {
  const auto* const begin = reinterpret_cast<const kj::byte*>(bytes.data());
  return kj::encodeBase64(kj::arrayPtr(begin, bytes.size())).cStr();
}

Result<Json> parse(std::string_view answer) {
  Json json = Json::parse(answer.begin(), answer.end(), nullptr, false);
  if (!json.is_object())
    return malformed(answer.empty() ? "it is empty" : "not a JSON object: " + printable(answer, 80));
  return json;
}

/// The member, or null if it is missing or null.
const Json* find(const Json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

/// A 64-bit number, which etcd encodes as a string and omits if 0.
Result<uint64_t> numberIn(const Json& object, const char* name) {
  const Json* const value = find(object, name);
  if (value == nullptr) return uint64_t{0};
  if (value->is_number_unsigned()) return value->get<uint64_t>();
  if (value->is_string()) {
    const auto& text = value->get_ref<const std::string&>();
    uint64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error == std::errc() && end == text.data() + text.size()) return number;
  }
  return malformed(std::string(name) + " is " + printable(describeJson(*value), 80) + ", not a number");
}

Result<std::string> bytesIn(const Json& object, const char* name) {
  const Json* const value = find(object, name);
  if (value == nullptr) return std::string();
  if (value->is_string()) {
    const auto& text = value->get_ref<const std::string&>();
    const auto bytes = kj::decodeBase64(kj::arrayPtr(text.data(), text.size()));
    if (!bytes.hadErrors) return std::string(reinterpret_cast<const char*>(bytes.begin()), bytes.size());
  }
  return malformed(std::string(name) + " is not base64");
}

/// Parses an entry of `kvs`, or of an event.
Result<Stored> readEntry(const Json& entry, const std::string& key) {
  PSD_ASSIGN_OR_RETURN(const std::string name, bytesIn(entry, "key"));
  if (name != key) return malformed("it has the key '" + printable(name, 80) + "'");
  Stored stored;
  PSD_ASSIGN_OR_RETURN(stored.text, bytesIn(entry, "value"));
  PSD_ASSIGN_OR_RETURN(stored.revision, numberIn(entry, "mod_revision"));
  if (stored.revision == 0) return malformed("a key without mod_revision");
  return stored;
}

Result<Stored> readEntries(const Json& range, const std::string& key) {
  if (!range.is_object() || find(range, "header") == nullptr) return malformed("there is no header");
  const Json* const entries = find(range, "kvs");
  if (entries == nullptr) return Stored{};
  if (!entries->is_array() || entries->size() > 1) return malformed("kvs is not a list of one");
  return entries->empty() ? Result<Stored>(Stored{}) : readEntry(entries->front(), key);
}

/// The `result` object of a line of a stream.
Result<Json> parseLine(std::string_view line) {
  PSD_ASSIGN_OR_RETURN(Json json, parse(line));
  if (const Json* const error = find(json, "error")) {
    const Json* const message = find(*error, "message");
    const bool said = message != nullptr && message->is_string();
    return Error{ErrorCode::unavailable,
                 said ? oneLine(message->get_ref<const std::string&>(), 200) : "the stream broke"};
  }
  const Json* const result = find(json, "result");
  if (result == nullptr || !result->is_object()) return malformed("a line without result");
  return Json(*result);
}

Error endedWatch(const Json& result) {
  const Json* const reason = find(result, "cancel_reason");
  if (reason == nullptr || !reason->is_string()) return {ErrorCode::unavailable, "etcd ended the watch"};
  const std::string text = oneLine(reason->get_ref<const std::string&>(), 200);
  const bool forbidden = text.find("permission denied") != std::string::npos;
  return {forbidden ? ErrorCode::forbidden : ErrorCode::unavailable, "etcd ended the watch: " + text};
}

}  // namespace

std::string rangeRequest(const std::string& key) { return jsonText({{"key", encoded(key)}}); }

std::string swapRequest(const std::string& key, uint64_t expectedRevision, const std::string& text) {
  const std::string name = encoded(key);
  const Json compare = {{"key", name},
                        {"target", "MOD"},
                        {"result", "EQUAL"},
                        {"mod_revision", std::to_string(expectedRevision)}};
  const Json put = {{"requestPut", {{"key", name}, {"value", encoded(text)}}}};
  const Json range = {{"requestRange", {{"key", name}}}};
  return jsonText({{"compare", Json::array({compare})},
                   {"success", Json::array({put})},
                   {"failure", Json::array({range})}});
}

std::string watchRequest(const std::string& key, uint64_t fromRevision) {
  return jsonText(
      {{"create_request", {{"key", encoded(key)}, {"start_revision", std::to_string(fromRevision)}}}});
}

std::string loginRequest(const std::string& user, const std::string& password) {
  return jsonText({{"name", user}, {"password", password}});
}

Result<Range> readRange(std::string_view answer, const std::string& key) {
  PSD_ASSIGN_OR_RETURN(const Json json, parse(answer));
  Range range;
  PSD_ASSIGN_OR_RETURN(range.stored, readEntries(json, key));
  PSD_ASSIGN_OR_RETURN(range.asOf, numberIn(json["header"], "revision"));
  if (range.asOf == 0) return malformed("an answer without revision");
  if (range.asOf < range.stored.revision) return malformed("a key with a future revision");
  return range;
}

Result<Swapped> readSwap(std::string_view answer, const std::string& key, const std::string& text) {
  PSD_ASSIGN_OR_RETURN(const Json json, parse(answer));
  const Json* const header = find(json, "header");
  if (header == nullptr) return malformed("there is no header");
  const Json* const succeeded = find(json, "succeeded");
  if (succeeded != nullptr && !succeeded->is_boolean())
    return malformed("succeeded is neither true nor false");
  if (succeeded != nullptr && succeeded->get<bool>()) {
    PSD_ASSIGN_OR_RETURN(const uint64_t revision, numberIn(*header, "revision"));
    if (revision == 0) return malformed("a swap without revision");
    return Swapped{true, {text, revision}};
  }
  const Json* const responses = find(json, "responses");
  if (responses == nullptr || !responses->is_array() || responses->size() != 1) {
    return malformed("responses is not a list of one");
  }
  const Json* const range = find(responses->front(), "response_range");
  if (range == nullptr) return malformed("there is no response_range");
  PSD_ASSIGN_OR_RETURN(Stored now, readEntries(*range, key));
  // The stored value may be this caller's although the transaction failed: an earlier attempt succeeded and
  // its answer was lost, or a retry reached another member first.
  const bool own = now.revision != 0 && now.text == text;
  return Swapped{own, std::move(now)};
}

Result<WatchLine> readWatch(std::string_view line, const std::string& key) {
  PSD_ASSIGN_OR_RETURN(const Json result, parseLine(line));
  WatchLine read;
  PSD_ASSIGN_OR_RETURN(read.compacted, numberIn(result, "compact_revision"));
  if (read.compacted != 0) return read;
  const Json* const canceled = find(result, "canceled");
  if (canceled != nullptr && *canceled == true) return endedWatch(result);
  const Json* const events = find(result, "events");
  if (events == nullptr) return read;
  if (!events->is_array()) return malformed("events is not a list");
  for (const Json& event : *events) {
    const Json* const type = find(event, "type");
    if (type != nullptr && *type != "PUT") {
      read.deleted = true;
      continue;
    }
    const Json* const entry = find(event, "kv");
    if (entry == nullptr) return malformed("an event without kv");
    PSD_ASSIGN_OR_RETURN(read.changed, readEntry(*entry, key));
  }
  return read;
}

Result<std::string> readToken(std::string_view answer) {
  PSD_ASSIGN_OR_RETURN(const Json json, parse(answer));
  const Json* const token = find(json, "token");
  if (token == nullptr || !token->is_string()) return malformed("there is no token");
  const auto& text = token->get_ref<const std::string&>();
  if (text.empty() || text.size() > kTokenMax)
    return malformed("a token of " + std::to_string(text.size()) + " bytes");
  for (const char c : text) {
    if (c <= ' ' || c > '~') return malformed("a token that is not text");
  }
  return text;
}

bool isLoginRequired(std::string_view message) {
  for (const std::string_view words : {"invalid auth token", "auth store is old", "user name is empty"}) {
    if (message.find(words) != std::string_view::npos) return true;
  }
  return false;
}

Refusal readRefusal(unsigned httpStatus, std::string_view answer) {
  Refusal refusal;
  const Json json = Json::parse(answer.begin(), answer.end(), nullptr, false);
  const Json* const message = find(json, "message");
  std::string text = message != nullptr && message->is_string() ? message->get<std::string>() : "";
  if (text.empty()) text = std::string(answer);
  const Result<uint64_t> code = numberIn(json, "code");
  const uint64_t number = code.ok() ? *code : 0;
  const auto says = [&text](std::string_view words) { return text.find(words) != std::string::npos; };

  refusal.noSuchPath = httpStatus == 404 && !says("etcdserver");
  refusal.authIsOff = says("authentication is not enabled");
  refusal.needsLogin = number == kUnauthenticated || isLoginRequired(text);
  refusal.error.code = ErrorCode::unavailable;
  if (number == kPermissionDenied) refusal.error.code = ErrorCode::forbidden;
  if (number == kInvalidArgument && (says("user name is empty") || says("authentication failed"))) {
    refusal.error.code = ErrorCode::unauthenticated;
  }
  refusal.error.message = oneLine(text, 200) + " (HTTP " + std::to_string(httpStatus) + ")";
  if (says("user name is empty")) refusal.error.message += ": this etcd requires a user and a password";
  return refusal;
}

}  // namespace psd::etcd

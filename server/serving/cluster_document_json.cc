#include "server/serving/cluster_document_json.h"

#include <charconv>
#include <utility>

#include <fmt/format.h>

#include "common/config/json_file.h"
#include "common/config/object_reader.h"
#include "common/text/split.h"
#include "common/text/text.h"

namespace psd {
namespace {

constexpr size_t kDocumentErrorBytesMax = 1000;

using Json = nlohmann::ordered_json;

constexpr std::string_view kDocumentFormat = "psd plan";
constexpr uint64_t kDocumentVersion = 1;
constexpr std::string_view kOfPrimary = "primary", kOfStandby = "standby";
constexpr uint64_t kDocumentNumberMax = uint64_t{1} << 53;

std::string numberInHex(uint64_t number) { return fmt::format("{:016x}", number); }

/// Accepts exactly what numberInHex() writes, except 0.
std::optional<uint64_t> fromHex(std::string_view text) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, 16);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  if (!whole || number == 0 || text != numberInHex(number)) return std::nullopt;
  return number;
}

void need(ObjectReader& in, std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) {
    if (!in.has(key)) in.fail(key, "is needed");
  }
}

uint64_t readHex(ObjectReader& in, std::string_view key) {
  if (!in.has(key)) return 0;
  const std::string text = in.text(key, "");
  const std::optional<uint64_t> number = fromHex(text);
  if (!number) in.fail(key, "must be 16 hexadecimal digits, not all 0, not \"" + printable(text, 40) + "\"");
  return number.value_or(0);
}

ReplicaSet readPlannedGroup(ObjectReader& in) {
  ReplicaSet group;
  std::vector<ObjectReader> entries = in.objects("groups");
  if (entries.empty()) return group;
  ObjectReader& entry = entries.front();
  need(entry, {"epoch", "history", "primary"});
  group.term = entry.integer("epoch", 1, 1, kDocumentNumberMax);
  group.history = readHex(entry, "history");
  group.primary = DaemonId{readHex(entry, "primary")};
  if (entry.has("standby")) group.standby = DaemonId{readHex(entry, "standby")};
  return group;
}

std::map<DaemonId, std::vector<Address>> readDaemonAddresses(ObjectReader in) {
  std::map<DaemonId, std::vector<Address>> daemons;
  const std::vector<std::string> keys = in.keys();
  if (keys.size() > kDocumentDaemonsMax) {
    in.fail("", fmt::format("{} daemons; at most {} are allowed", keys.size(), kDocumentDaemonsMax));
    return daemons;
  }
  for (const std::string& key : keys) {
    const std::optional<uint64_t> id = fromHex(key);
    const std::vector<std::string> texts = in.texts(key, {});
    if (!id) {
      in.fail(key, "a daemon is named by 16 hexadecimal digits");
      continue;
    }
    std::vector<Address>& addresses = daemons[DaemonId{*id}];
    for (size_t i = 0; i < texts.size(); i++) {
      Result<Address> address = parseAddress(texts[i]);
      if (!address.ok()) {
        in.fail(fmt::format("{}[{}]", key, i), address.message());
      } else if (address->toString() != texts[i]) {
        in.fail(fmt::format("{}[{}]", key, i),
                "'" + printable(texts[i]) + "' is written " + address->toString());
      } else {
        addresses.push_back(*std::move(address));
      }
    }
  }
  return daemons;
}

RecordedMove readMove(ObjectReader in) {
  need(in, {"move", "to"});
  RecordedMove moved{readHex(in, "move"), {}};
  for (const std::string& text : in.texts("to", {})) moved.to.push_back(splitAtCommas(text));
  return moved;
}

DocumentSource readSource(ObjectReader& in) {
  if (!in.has("from_folder_of")) return DocumentSource::daemons;
  const std::string of = in.text("from_folder_of", "");
  if (of == kOfPrimary) return DocumentSource::primaryFolder;
  if (of != kOfStandby) in.fail("from_folder_of", "must be \"primary\" or \"standby\"");
  return DocumentSource::standbyFolder;
}

/// Reports a document of another kind or version before any other problem.
Status checkFormat(const Json& document) {
  const auto wrong = [](const std::string& message) { return Status(ErrorCode::invalidArgument, message); };
  if (!document.is_object()) return wrong("must be a JSON object, not " + describeJson(document));
  if (!document.contains("format") || document["format"] != kDocumentFormat) {
    return wrong("format: must be \"" + std::string(kDocumentFormat) +
                 "\": this is not a cluster document of psd");
  }
  const Json version = document.value("format_version", Json());
  if (version == kDocumentVersion) return {};
  return wrong(fmt::format("format_version: must be {}, not {}: it was written by another version of psd",
                           kDocumentVersion, describeJson(version)));
}

/// Checks that there is one group and no shards, where these are lists.
Status checkOneGroup(const Json& document) {
  const auto countOf = [&](const char* key, size_t fallback) {
    const auto found = document.find(key);
    return found != document.end() && found->is_array() ? found->size() : fallback;
  };
  if (const size_t groups = countOf("groups", 1); groups != 1) {
    return {ErrorCode::invalidArgument, fmt::format("groups: {} groups; there is one", groups)};
  }
  if (countOf("shards", 0) == 0) return {};
  return {ErrorCode::invalidArgument, "shards: must be empty: the group has all of them"};
}

Result<ClusterDocument> readDocument(Json document) {
  PSD_RETURN_IF_ERROR(checkFormat(document));
  PSD_RETURN_IF_ERROR(checkOneGroup(document));
  ObjectReader in(std::move(document));
  ClusterDocument plan;
  (void)in.text("format", "");
  (void)in.integer("format_version", kDocumentVersion, kDocumentVersion, kDocumentVersion);
  need(in, {"proposal", "ended", "groups", "daemons"});
  plan.proposal = readHex(in, "proposal");
  plan.ended = in.boolean("ended", false);
  plan.saved = in.boolean("saved", true);
  plan.source = readSource(in);
  if (in.has("moved")) plan.moved = readMove(in.object("moved"));
  // Marks the key as known; checkOneGroup() has checked that it is empty.
  (void)in.objects("shards");
  plan.group = readPlannedGroup(in);
  plan.daemons = readDaemonAddresses(in.object("daemons"));
  PSD_RETURN_IF_ERROR(in.finish());
  PSD_RETURN_IF_ERROR(validateDocument(plan));
  return plan;
}

}  // namespace

std::string documentText(const ClusterDocument& plan) {
  Json document = {{"format", kDocumentFormat},
                   {"format_version", kDocumentVersion},
                   {"proposal", numberInHex(plan.proposal)}};
  document["ended"] = plan.ended;
  if (plan.ended && !plan.moved) document["saved"] = plan.saved;
  if (plan.fromFolder()) {
    document["from_folder_of"] = plan.source == DocumentSource::primaryFolder ? kOfPrimary : kOfStandby;
  }
  if (plan.moved) {
    Json to = Json::array();
    for (const auto& addresses : plan.moved->to) to.push_back(joined(addresses, ","));
    document["moved"] = {{"move", numberInHex(plan.moved->move)}, {"to", std::move(to)}};
  }
  document["shards"] = Json::array();  // required by older versions, as is exactly one group
  Json group = {{"epoch", plan.group.term},
                {"history", numberInHex(plan.group.history)},
                {"primary", numberInHex(plan.group.primary.value)}};
  if (plan.group.standby) group["standby"] = numberInHex(plan.group.standby->value);
  document["groups"] = Json::array({std::move(group)});
  document["daemons"] = Json::object();
  for (const auto& [id, addresses] : plan.daemons) {
    Json& texts = document["daemons"][numberInHex(id.value)] = Json::array();
    for (const Address& address : addresses) texts.push_back(address.toString());
  }
  return jsonText(document, 1) + "\n";
}

Result<ClusterDocument> parseDocument(std::string_view text) {
  Result<Json> document = parseJson(text, "the cluster document");
  if (!document.ok())
    return Error{document.error().code, oneLine(document.message(), kDocumentErrorBytesMax)};
  Result<ClusterDocument> plan = readDocument(*std::move(document));
  if (plan.ok()) return plan;
  // The message may quote names and addresses from the document.
  return Error{plan.error().code, "the cluster document: " + oneLine(plan.message(), kDocumentErrorBytesMax)};
}

}  // namespace psd

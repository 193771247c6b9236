#include "server/config/store_rules.h"

#include <algorithm>
#include <iterator>
#include <string>

namespace psd {
namespace {

constexpr std::string_view kKeysOfTraining[] = {
    "codecs",      "daemons",    "device", "devices",   "durability", "exit_when_done",
    "groups",      "index",      "model",  "optimizer", "membership", "policy",
    "replication", "row_shards", "save",   "shards",    "tables",     "world_size"};

}  // namespace

bool isKeyOfTraining(std::string_view key) {
  return std::ranges::find(kKeysOfTraining, key) != std::end(kKeysOfTraining);
}

void refuseKeysOfTraining(ConfigReader& in, PublishConfig::From from) {
  for (const std::string_view key : kKeysOfTraining) {
    if (!in.has(key)) continue;
    in.fail(key, "is about a model that the daemon trains, and with publish.from \"" +
                     std::string(publishFromName(from)) + "\" it has none" +
                     std::string(key == "durability" ? ": publish.path has the folder of the versions" : ""));
  }
}

Error storeHasNoModel() {
  return {
      ErrorCode::invalidArgument,
      "this daemon serves published versions and has no model (its publish.from is not \"training\"): read "
      "them with psd.Follower, psd follow or psd export --published"};
}

}  // namespace psd

#include "server/tools/operator_commands.h"

#include <cstdio>
#include <optional>

#include <fmt/format.h>

#include "common/config/json_file.h"
#include "common/log/log.h"
#include "common/os/env.h"
#include "common/plan/model_partitions.h"
#include "common/safetensors/combined_version.h"
#include "common/safetensors/safetensors.h"
#include "common/text/quantity.h"
#include "common/text/text.h"
#include "common/types/model_layout.h"
#include "server/checkpoint/manifest.h"
#include "server/client/admin_client.h"
#include "server/client/whole_version_client.h"
#include "server/config/config_schema.h"
#include "server/status/status_json.h"
#include "server/status/status_table.h"
#include "server/tools/replica_sets_overview.h"

namespace psd {
namespace {

using Json = nlohmann::ordered_json;

/// Prints the documents of all daemons, and the errors of those that do not answer.
Status printStatusJson(const std::vector<DaemonCall>& daemons) {
  if (daemons.size() == 1) {
    PSD_ASSIGN_OR_RETURN(const Json document, statusOf(daemons.front()));
    std::puts(jsonText(document, 2).c_str());  // unchanged, whatever the daemon's version
    return {};
  }
  Json all = {{"daemons", Json::array()}};
  Status worst;
  for (const DaemonCall& daemon : daemons) {
    const Result<Json> document = statusOf(daemon);
    if (!document.ok()) worst = document.status();
    all["daemons"].push_back(
        document.ok() ? *document : Json{{"addresses", daemon.servers}, {"error", document.message()}});
  }
  std::puts(jsonText(all, 2).c_str());
  return worst;
}

}  // namespace

void printConfig(const LoadedConfig& loaded) { std::puts(jsonText(loaded.effective, 2).c_str()); }
void printSchema() { std::puts(jsonText(configSchema(), 2).c_str()); }

Status printStatus(const DaemonCall& call, bool json, bool here) {
  PSD_ASSIGN_OR_RETURN(const std::vector<DaemonCall> daemons, daemonsOf(call, here));
  if (json) return printStatusJson(daemons);
  std::vector<Result<DaemonStatus>> statuses;
  for (const DaemonCall& daemon : daemons) statuses.push_back(readStatusOf(daemon));
  if (daemons.size() == 1 && !statuses.front().ok()) return statuses.front().status();
  if (const std::string overview = here ? "" : replicaSetsOverview(call.servers, daemons, statuses);
      !overview.empty())
    std::puts(overview.c_str());
  Status worst;
  for (size_t i = 0; i < daemons.size(); i++) {
    if (i > 0) std::puts("");
    if (statuses[i].ok()) {
      std::fputs(statusTable(*statuses[i]).c_str(), stdout);
    } else {
      worst = statuses[i].status();
      std::printf("daemon %zu of %zu: %s\n", i, daemons.size(), worst.message().c_str());
    }
  }
  return worst;
}

Status printHotRows(const DaemonCall& call, bool json) {
  PSD_ASSIGN_OR_RETURN(const Address address, reachableAddress(call));
  PSD_ASSIGN_OR_RETURN(const std::string text, fetchHotRowsJson(address, call.timeout, call.credentials));
  const std::string origin = "the hot rows of " + address.toString();
  PSD_ASSIGN_OR_RETURN(const nlohmann::ordered_json document, parseJson(text, origin));
  if (json) {
    std::puts(jsonText(document, 2).c_str());
    return {};
  }
  PSD_ASSIGN_OR_RETURN(const HotRowsStatus rows, readHotRows(document, origin));
  std::fputs(hotRowsTable(rows).c_str(), stdout);
  return {};
}

namespace {

/// Whether the daemon would accept the change; one whose version lacks the check counts as accepting.
Status mayChange(const Address& address, const std::string& assignment, const DaemonCall& call) {
  Status may = checkChange(address, assignment, call.timeout, call.credentials).status();
  return !may.ok() && may.error().code == ErrorCode::protocolMismatch ? Status() : may;
}

}  // namespace

Status reloadServer(const DaemonCall& call) {
  return changeAll(
      call,
      [&](const Address& address) -> Result<std::string> {
        PSD_ASSIGN_OR_RETURN(const std::string change, reloadDaemon(address, call.timeout, call.credentials));
        return address.toString() + ": " + change;
      },
      [&](const Address& address) { return mayChange(address, "", call); });
}

Status showReload(const DaemonCall& call) {
  PSD_ASSIGN_OR_RETURN(const std::vector<Address> addresses, allPrimaryAddresses(call));
  Status worst;
  for (const Address& address : addresses) {
    const auto change = checkChange(address, "", call.timeout, call.credentials);
    if (!change.ok()) {
      if (addresses.size() == 1) return change.status();
      std::printf("%s\n", oneLine(change.message(), kMessageBytesMax).c_str());
      worst = {change.error().code, "not all daemons would accept their configuration"};
      continue;
    }
    std::puts(oneLine(address.toString() + ": " + *change, kMessageBytesMax).c_str());
  }
  return worst;
}

namespace {

Error ofDaemon(size_t index, size_t of, const Error& error) {
  return {error.code, fmt::format("daemon {} of {}: {}", index, of, error.message)};
}

/// The newest checkpoints of all daemons as one of the whole model; nullopt if a daemon keeps a log.
Result<std::optional<WholeCheckpoint>> newestOfAll(const DaemonCall& call,
                                                   const std::vector<Address>& addresses) {
  WholeCheckpoint whole;
  whole.created = utcNow();
  for (size_t i = 0; i < addresses.size(); i++) {
    const auto part = fetchNewestPart(addresses[i], call.timeout, call.credentials);
    if (!part.ok()) return ofDaemon(i, addresses.size(), part.error());
    if (part->logged) return std::optional<WholeCheckpoint>();
    const Partition wanted{static_cast<uint32_t>(i), static_cast<uint32_t>(addresses.size())};
    if (part->partition != wanted) {
      return ofDaemon(
          i, addresses.size(),
          {ErrorCode::modelMismatch, "its newest checkpoint is of " + part->partition.toString()});
    }
    whole.parts.push_back(part->ref);
    if (i > 0 || !part->whole) continue;
    for (const CheckpointRef& before : part->whole->parts) whole.before.push_back(before.number);
  }
  if (whole.before.size() != whole.parts.size()) whole.before.clear();
  return std::optional(std::move(whole));
}

/// Commits the newest checkpoints of all daemons as one of the whole model. The lead is last: by then all
/// others keep their parts of it, and of the previous one.
Status commitWhole(const DaemonCall& call, const std::vector<Address>& addresses) {
  PSD_ASSIGN_OR_RETURN(const auto whole, newestOfAll(call, addresses));
  if (!whole) return {};
  for (size_t i = addresses.size(); i-- > 0;) {
    const Status kept = recordWhole(addresses[i], *whole, call.timeout, call.credentials);
    if (!kept.ok()) return ofDaemon(i, addresses.size(), kept.error());
  }
  std::printf("together these are a checkpoint of the whole model: %s\n",
              joined(whole->parts, ", ", [](const CheckpointRef& part) {
                return std::to_string(part.number);
              }).c_str());
  return {};
}

}  // namespace

Status checkpointServer(const DaemonCall& call) {
  PSD_RETURN_IF_ERROR(changeAll(
      call, [&](const Address& address) { return takeCheckpoint(address, call.timeout, call.credentials); }));
  PSD_ASSIGN_OR_RETURN(const std::vector<Address> addresses, allPrimaryAddresses(call));
  if (addresses.size() == 1) return {};
  const Status committed = commitWhole(call, addresses);
  if (committed.ok()) return {};
  return {committed.error().code,
          committed.message() + "; the checkpoints above are not one of the whole model"};
}

Status publishServer(const DaemonCall& call) {
  PSD_ASSIGN_OR_RETURN(const Address address, addressOf(call));
  PSD_ASSIGN_OR_RETURN(const VersionInfo info, publishVersion(address, call.timeout, call.credentials));
  std::printf("%s: version %llu, %s\n", address.toString().c_str(),
              static_cast<unsigned long long>(info.number), bytesText(info.bytes).c_str());
  return {};
}

Status rollBackServer(const DaemonCall& call, uint64_t number) {
  PSD_ASSIGN_OR_RETURN(const Address address, addressOf(call));
  PSD_ASSIGN_OR_RETURN(const VersionInfo info, rollBackTo(address, number, call.timeout, call.credentials));
  std::printf("%s: the model is that of version %llu again, published as version %llu\n",
              address.toString().c_str(), static_cast<unsigned long long>(number),
              static_cast<unsigned long long>(info.number));
  return {};
}

namespace {

/// The versions that all daemons of a model have, and who leases the parts of the first.
Status printWholeVersions(const DaemonCall& call, const std::vector<Address>& daemons, bool json) {
  PSD_ASSIGN_OR_RETURN(const auto lists, fetchVersionLists({daemons, call.timeout, call.credentials}));
  PublishStatus whole;
  const std::vector<VersionInfo> common = commonVersions(lists);
  for (const VersionInfo& version : common) {
    whole.versions.push_back({version.number, version.step, version.created,
                              std::string(momentName(version.moment)), version.bytes});
  }
  if (!json) {
    PSD_ASSIGN_OR_RETURN(const DaemonStatus lead, readStatusAt(daemons.front(), call));
    if (lead.publish) whole.leases = lead.publish->leases;
    std::fputs(versionsTable(whole).c_str(), stdout);
    return {};
  }
  Json out = {{"versions", Json::array()}, {"daemons", Json::array()}};
  for (const VersionInfo& version : common) {
    out["versions"].push_back({{"number", version.number},
                               {"history", fmt::format("{:016x}", version.history)},
                               {"step", version.step},
                               {"created", version.created},
                               {"moment", momentName(version.moment)},
                               {"file_bytes", version.bytes}});
  }
  for (const Address& daemon : daemons) {
    PSD_ASSIGN_OR_RETURN(const Json document, statusAt(daemon, call));
    const auto publish = document.find("publish");
    out["daemons"].push_back(publish == document.end() ? Json() : *publish);
  }
  std::puts(jsonText(out, 2).c_str());
  return {};
}

}  // namespace

Status printVersions(const DaemonCall& call, bool json) {
  PSD_ASSIGN_OR_RETURN(const std::vector<Address> daemons, allPrimaryAddresses(call));
  if (daemons.size() > 1) return printWholeVersions(call, daemons, json);
  if (json) {
    PSD_ASSIGN_OR_RETURN(const Json document, statusOf(call));
    const auto publish = document.find("publish");
    std::puts(jsonText(publish == document.end() ? Json() : *publish, 2).c_str());
    return {};
  }
  PSD_ASSIGN_OR_RETURN(const DaemonStatus status, readStatusOf(call));
  if (!status.publish) {
    return {ErrorCode::invalidArgument, joined(call.servers, ",") +
                                            ": this daemon publishes no versions: its configuration has no "
                                            "`publish`"};
  }
  if (status.state == kStateMoved) {
    return {ErrorCode::standby, fmt::format("{}: the model has moved, with its versions, to {}",
                                            joined(call.servers, ","), joined(status.movedTo, " "))};
  }
  std::fputs(versionsTable(*status.publish).c_str(), stdout);
  return {};
}

Status switchServer(const DaemonCall& call) {
  PSD_ASSIGN_OR_RETURN(const Address address, addressOf(call));
  PSD_RETURN_IF_ERROR(switchOver(address, call.timeout, call.credentials));
  std::printf("%s: its standby is the primary now\n", address.toString().c_str());
  return {};
}

Status recoverServer(const DaemonCall& call) {
  PSD_ASSIGN_OR_RETURN(const Address address, reachableAddress(call));
  PSD_RETURN_IF_ERROR(recoverDaemon(address, call.timeout, call.credentials));
  std::printf("%s: becomes the primary\n", address.toString().c_str());
  return {};
}

Status removeTrainerOf(const DaemonCall& call, Rank rank) {
  PSD_ASSIGN_OR_RETURN(const std::vector<Address> addresses, allPrimaryAddresses(call));
  Status worst;
  bool any = false;
  // Each daemon tracks its own members: some may have lost the trainer already.
  for (const Address& address : addresses) {
    const auto removed = removeTrainer(address, rank, call.timeout, call.credentials);
    if (!removed.ok()) worst = removed.status();
    if (!removed.ok()) continue;
    any = true;
    std::printf("%s: %s was removed\n", address.toString().c_str(), removed->c_str());
  }
  return any ? Status() : worst;
}

Status setKeyOf(const DaemonCall& call, const std::string& assignment) {
  return changeAll(
      call,
      [&](const Address& address) -> Result<std::string> {
        PSD_ASSIGN_OR_RETURN(const std::string change,
                             setKey(address, assignment, call.timeout, call.credentials));
        return address.toString() + ": " + change;
      },
      [&](const Address& address) { return mayChange(address, assignment, call); });
}

namespace {

/// Fetches the whole model from all daemons that serve it.
Result<LiveModel> fetchWhole(const DaemonCall& call) {
  PSD_ASSIGN_OR_RETURN(const std::vector<Address> addresses, allPrimaryAddresses(call));
  std::vector<ModelSpec> partitions;
  LiveModel whole;
  for (const Address& address : addresses) {
    PSD_ASSIGN_OR_RETURN(LiveModel part, fetchModel(address, call.timeout, call.credentials));
    if (part.buffers) whole.buffers = std::move(part.buffers);
    partitions.push_back(part.spec);
    whole.values.insert(whole.values.end(), part.values.begin(), part.values.end());
  }
  PSD_ASSIGN_OR_RETURN(whole.spec, joinPartitions(partitions));
  if (ModelLayout(whole.spec).totalElements() != whole.values.size()) {
    return Error{ErrorCode::modelMismatch, "the daemons' partitions do not belong to one model"};
  }
  return whole;
}

}  // namespace

Status exportServer(Env& env, const DaemonCall& call, const std::string& to) {
  PSD_ASSIGN_OR_RETURN(const LiveModel model, fetchWhole(call));
  const std::string from = joined(call.servers, ",");
  if (model.spec.tensors.empty()) {
    return {
        ErrorCode::invalidArgument,
        from + ": model '" + model.spec.name +
            "' has only embedding tables; psd export CHECKPOINT --table NAME --to FILE writes one of them"};
  }
  const auto places = ModelLayout(model.spec).places();
  PSD_RETURN_IF_ERROR(writeFileAtomically(env, to, [&](WritableFile& file) {
    return writeModelFile(file, model.spec, model.buffers.get(), [&](size_t index, const auto& sink) {
      return sink(std::span(model.values).subspan(places[index].begin, places[index].count));
    });
  }));
  std::printf("wrote model '%s' of %s to '%s'\n", model.spec.name.c_str(), from.c_str(), to.c_str());
  return {};
}

namespace {

Error notAllStopped(ErrorCode code) { return {code, "not all daemons have stopped"}; }

void printUnstopped(size_t index, size_t of, const std::string& why) {
  std::fprintf(stderr, "psd: daemon %zu of %zu: %s\n", index, of, oneLine(why, kMessageBytesMax).c_str());
}

/// Stops those of several daemons from which the model has moved that are still running, including standbys.
/// Most have ended already.
Status stopMoved(const DaemonCall& call, const std::vector<DaemonCall>& daemons) {
  Status worst;
  for (size_t i = daemons.size(); i-- > 0;) {
    for (const std::string& server : daemons[i].servers) {
      PSD_ASSIGN_OR_RETURN(const Address address, parseAddress(server));
      const auto found = readStatusAt(address, call);
      if (!found.ok() && found.error().code == ErrorCode::unavailable) continue;  // it has ended
      if (found.ok() && found->state != kStateMoved) {
        std::printf("%s is %s, and was not stopped\n", server.c_str(), found->state.c_str());
        continue;
      }
      const Status stopped =
          found.ok() ? stopDaemon(address, "psd stop", call.timeout, call.credentials) : found.status();
      if (stopped.ok()) {
        std::printf("%s has stopped\n", server.c_str());
        continue;
      }
      printUnstopped(i, daemons.size(), stopped.message());
      worst = notAllStopped(stopped.error().code);
    }
  }
  return worst;
}

/// ErrorCode::notReady if stopping the daemon would discard its model. An older daemon does not say.
Status checkNothingIsLost(const Address& address, const DaemonCall& call) {
  PSD_ASSIGN_OR_RETURN(const DaemonStatus status, readStatusAt(address, call));
  if (!status.losesModel) return {};
  if (!status.tables.empty()) {
    return {ErrorCode::notReady,
            fmt::format("{}: stopping would discard the rows of the model's tables, which only `durability` "
                        "keeps, and that is none; stop with --discard, or give `durability` when the daemon "
                        "starts",
                        address.toString())};
  }
  return {ErrorCode::notReady,
          fmt::format(
              "{}: stopping would discard the model: `durability` is none and `save` is empty; save it with "
              "'psd export --server {} FILE', or stop with --discard",
              address.toString(), joined(call.servers, ","))};
}

}  // namespace

Status stopServer(const DaemonCall& call, bool discard) {
  PSD_ASSIGN_OR_RETURN(const std::vector<DaemonCall> daemons, allDaemons(call));
  if (daemons.size() > 1) {
    PSD_ASSIGN_OR_RETURN(const Address called, addressOf(call));
    const auto found = readStatusAt(called, call);
    if (found.ok() && found->state == kStateMoved) return stopMoved(call, daemons);
  }
  std::vector<Result<Address>> addresses;
  for (const DaemonCall& daemon : daemons) {
    addresses.push_back(daemons.size() == 1 ? addressOf(daemon) : primaryAddress(daemon));
    if (discard || !addresses.back().ok()) continue;
    const Status kept = checkNothingIsLost(*addresses.back(), call);
    if (kept.ok()) continue;
    if (kept.error().code == ErrorCode::notReady) return kept;
    addresses.back() = kept.error();
  }
  Status worst;
  // The lead last, since it decides which trainers are joined.
  for (size_t i = daemons.size(); i-- > 0;) {
    const Result<Address>& address = addresses[i];
    const Status stopped =
        address.ok() ? stopDaemon(*address, "psd stop", call.timeout, call.credentials) : address.status();
    if (stopped.ok()) {
      std::printf("%s has stopped\n", address->toString().c_str());
    } else if (daemons.size() == 1) {
      return stopped;
    } else {
      printUnstopped(i, daemons.size(), stopped.message());
      worst = notAllStopped(stopped.error().code);
    }
  }
  return worst;
}

}  // namespace psd

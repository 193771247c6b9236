#include "trainer/client/state_calls.h"

#include <algorithm>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "common/text/text.h"
#include "common/wire/convert.h"
#include "trainer/client/transport/sanitized.h"
#include "trainer/client/transport/slice_queue.h"

namespace psd {
namespace {

using StateAnswer = capnp::Response<schema::StateResult>;
using States = Result<std::vector<std::string>>;

constexpr uint32_t kStateWindow = 4;  // slices in flight
// A request without values ends the previous pull. Pulls of parameters have smaller numbers, so that their
// values are distinct in MessageTransport.
constexpr uint64_t kStatePull = uint64_t{1} << 63;
constexpr uint32_t kStatesMax = 16;  // of an optimizer
constexpr size_t kStateNameBytesMax = 64;

/// One slice of the values (`state` empty) or of a state.
struct Part {
  std::string state;
  Slice slice;
};

Status mayExchange(DaemonConnection& connection, const SessionTerms& terms) {
  if (!connection.canPush())
    return {ErrorCode::invalidArgument, "the optimizer's state is exchanged after join()"};
  if (terms.restoresState) return {};
  return {ErrorCode::unavailable, "the daemon's psd is too old to send or restore its optimizer's state"};
}

std::vector<Part> partsOf(const SessionTerms& terms, ShardId shard, const std::vector<std::string>& states) {
  std::vector<Part> parts;
  const auto add = [&](const std::string& state) {
    for (const Slice& slice : terms.slices) {
      if (slice.shard == shard) parts.push_back({state, slice});
    }
  };
  add("");
  for (const std::string& state : states) add(state);
  return parts;
}

auto requestState(DaemonConnection& connection, ShardId shard, const std::string& state, uint64_t offset,
                  uint64_t count) {
  auto request = connection.trainer().pullStateRequest();
  request.setPull(kStatePull);
  request.setShard(shard.value);
  request.setState(state.c_str());
  request.setOffset(offset);
  request.setCount(count);
  return request.send();
}

/// The names of the states of a shard's optimizer; ends the previous pull.
kj::Promise<States> statesOf(DaemonConnection& connection, ShardId shard) {
  return requestState(connection, shard, "", 0, 0).then([](const StateAnswer& answer) -> States {
    if (answer.isError()) return sanitized(wire::readError(answer.getError()));
    std::vector<std::string> names;
    for (const auto name : answer.getSlice().getStates()) {
      names.push_back(printable(wire::textIn(name), kStateNameBytesMax));
      const bool known = std::ranges::count(names, names.back()) > 1;
      if (known || names.back().empty() || names.size() > kStatesMax) {
        return Error{ErrorCode::protocolMismatch, "the daemon names states that no optimizer has"};
      }
    }
    return names;
  });
}

/// A fetch in progress.
struct Fetch {
  DaemonConnection& connection;
  const SessionTerms& terms;
  OptimizerState state;
};

Status takeSlice(Fetch& fetch, const Part& part, const StateAnswer& answer) {
  if (answer.isError()) return sanitized(wire::readError(answer.getError()));
  const auto slice = answer.getSlice();
  PSD_ASSIGN_OR_RETURN(const auto values, wire::floatsIn(slice.getValues()));
  if (values.size() != part.slice.count) {
    return {ErrorCode::protocolMismatch,
            fmt::format("the daemon sent {} values of a slice of {}", values.size(), part.slice.count)};
  }
  fetch.state.versions[part.slice.shard.value] = Version{slice.getVersion()};
  fetch.state.steps[part.slice.shard.value] = slice.getSteps();
  std::ranges::copy(values,
                    fetch.state.arrays[part.state].begin() + static_cast<ptrdiff_t>(part.slice.arena));
  return {};
}

kj::Promise<Status> fetchParts(const std::shared_ptr<Fetch>& fetch, std::vector<Part> all) {
  uint64_t elements = 0;
  for (const ShardRange& shard : fetch->terms.plan.shards)
    elements = std::max(elements, shard.begin + shard.count);
  for (const Part& part : all) fetch->state.arrays[part.state].resize(elements);
  auto parts = kj::heap<std::vector<Part>>(std::move(all));
  const auto send = [fetch, &parts = *parts](size_t index) {
    const Part& part = parts[index];
    return requestState(fetch->connection, part.slice.shard, part.state, part.slice.offset, part.slice.count)
        .then([fetch, &part](const StateAnswer& answer) { return takeSlice(*fetch, part, answer); });
  };
  return sendInWindow(parts->size(), kStateWindow, send).attach(kj::mv(parts));
}

/// Fetches the shards from number `shard` on.
kj::Promise<Status> fetchFrom(std::shared_ptr<Fetch> fetch, size_t shard) {
  if (shard == fetch->terms.plan.shards.size()) {
    return statesOf(fetch->connection, ShardId{}).then([](const States& ended) { return ended.status(); });
  }
  const ShardId id = fetch->terms.plan.shards[shard].id;
  return statesOf(fetch->connection, id)
      .then([fetch, id](const States& states) -> kj::Promise<Status> {
        if (!states.ok()) return states.status();
        return fetchParts(fetch, partsOf(fetch->terms, id, *states));
      })
      .then([fetch, shard](Status status) -> kj::Promise<Status> {
        if (!status.ok()) return status;
        return fetchFrom(fetch, shard + 1);
      });
}

kj::Promise<Status> sendPart(DaemonConnection& connection, const Part& part, std::span<const float> array) {
  const auto values = array.subspan(part.slice.arena, part.slice.count);
  auto request = connection.trainer().restoreStateRequest();
  request.setShard(part.slice.shard.value);
  request.setState(part.state.c_str());
  request.setOffset(part.slice.offset);
  const auto bytes = std::as_bytes(values);
  request.setValues({reinterpret_cast<const kj::byte*>(bytes.data()), bytes.size()});
  return request.send().then([](capnp::Response<schema::Trainer::RestoreStateResults> answer) {
    const Status status = wire::readStatus(answer.getStatus());
    return status.ok() ? status : Status(sanitized(status.error()));
  });
}

/// A restore in progress.
struct Sending {
  DaemonConnection& connection;
  const SessionTerms& terms;
  StateToRestore state;
  std::vector<Part> parts;
  std::set<std::string> names;
};

Status addShard(Sending& sending, ShardId shard, const States& states) {
  if (!states.ok()) return states.status();
  for (const std::string& name : *states) {
    if (!sending.state.arrays.contains(name)) {
      return {ErrorCode::invalidArgument,
              fmt::format("the state to restore has no '{}', which the daemon's optimizer has", name)};
    }
    sending.names.insert(name);
  }
  for (Part& part : partsOf(sending.terms, shard, *states)) sending.parts.push_back(std::move(part));
  return {};
}

}  // namespace

kj::Promise<Result<OptimizerState>> fetchState(DaemonConnection& connection, const SessionTerms& terms) {
  using Fetched = Result<OptimizerState>;
  return connection.call([&]() -> kj::Promise<Fetched> {
    if (Status may = mayExchange(connection, terms); !may.ok()) return Fetched(may.error());
    if (terms.plan.shards.empty()) return Fetched(OptimizerState{.arrays = {{"", {}}}});
    auto fetch = std::make_shared<Fetch>(Fetch{connection, terms, {}});
    fetch->state.versions.resize(terms.plan.shards.size());
    fetch->state.steps.resize(terms.plan.shards.size());
    return fetchFrom(fetch, 0).then([fetch](const Status& status) -> Fetched {
      if (!status.ok()) return status.error();
      return std::move(fetch->state);
    });
  });
}

kj::Promise<Result<std::set<std::string>>> sendState(DaemonConnection& connection, const SessionTerms& terms,
                                                     const StateToRestore& state) {
  using Names = Result<std::set<std::string>>;
  return connection.call([&]() -> kj::Promise<Names> {
    if (Status may = mayExchange(connection, terms); !may.ok()) return Names(may.error());
    auto sending = std::make_shared<Sending>(Sending{connection, terms, state, {}, {}});
    const auto ask = [sending](size_t index) {
      const ShardId shard = sending->terms.plan.shards[index].id;
      return statesOf(sending->connection, shard).then([sending, shard](const States& states) {
        return addShard(*sending, shard, states);
      });
    };
    return sendInWindow(terms.plan.shards.size(), kStateWindow, ask)
        .then([sending](Status status) -> kj::Promise<Status> {
          if (!status.ok()) return status;
          return sendInWindow(sending->parts.size(), kStateWindow, [sending](size_t index) {
            const Part& part = sending->parts[index];
            return sendPart(sending->connection, part, sending->state.arrays.at(part.state));
          });
        })
        .then([sending](const Status& status) -> Names {
          if (!status.ok()) return status.error();
          return std::move(sending->names);
        });
  });
}

Status checkStates(const StateToRestore& state, const std::set<std::string>& names) {
  for (const auto& [name, array] : state.arrays) {
    if (name.empty() || names.contains(name)) continue;
    return {ErrorCode::invalidArgument,
            fmt::format("the state to restore has '{}', and the daemon's optimizer has {}", name,
                        names.empty() ? "no state" : joined(names, ", "))};
  }
  return {};
}

kj::Promise<Status> applyState(DaemonConnection& connection, const std::vector<uint64_t>& steps) {
  return connection.call([&] {
    auto request = connection.trainer().restoredRequest();
    auto out = request.initSteps(static_cast<kj::uint>(steps.size()));
    for (kj::uint i = 0; i < out.size(); i++) out.set(i, steps[i]);
    return request.send().then([](capnp::Response<schema::Trainer::RestoredResults> answer) {
      const Status status = wire::readStatus(answer.getStatus());
      return status.ok() ? status : Status(sanitized(status.error()));
    });
  });
}

}  // namespace psd

// RpcClient: the exchange of buffers and of the optimizer's state.

#include <memory>
#include <utility>

#include "trainer/client/rpc_client.h"
#include "trainer/client/state_calls.h"

namespace psd {

Status RpcClient::setBuffers(std::vector<std::byte> file) {
  const auto shared = std::make_shared<const std::vector<std::byte>>(std::move(file));
  for (;;) {
    const uint64_t connection = links_.number();
    const Status set = links_.first().call<Status>(
        lock_, [shared](Channel& channel, kj::Timer&) { return channel.setBuffers(shared); });
    if (set.ok()) return set;
    PSD_RETURN_IF_ERROR(recover(connection, set.error()));
  }
}

Result<std::vector<std::byte>> RpcClient::buffers() {
  for (;;) {
    const uint64_t connection = links_.number();
    auto file = links_.first().call<Result<std::vector<std::byte>>>(
        lock_, [](Channel& channel, kj::Timer&) { return channel.buffers(); });
    if (file.ok()) return file;
    PSD_RETURN_IF_ERROR(recover(connection, file.error()));
  }
}

bool RpcClient::hasEnded() const {
  return links_.first().look([](Channel& channel) { return channel.connection().ended().has_value(); });
}

Result<OptimizerState> RpcClient::fetchState() {
  for (;;) {
    const uint64_t connection = links_.number();
    auto state = links_.first().call<Result<OptimizerState>>(lock_, [](Channel& channel, kj::Timer&) {
      return psd::fetchState(channel.connection(), channel.terms());
    });
    if (state.ok() || !hasEnded()) return state;
    PSD_RETURN_IF_ERROR(recover(connection, state.error()));
  }
}

Result<std::set<std::string>> RpcClient::sendState(const StateToRestore& state) {
  if (!state.arrays.contains(""))
    return Error{ErrorCode::invalidArgument, "the state to restore has no values"};
  for (const auto& [name, array] : state.arrays) {
    PSD_RETURN_IF_ERROR(session_.checkValues(name.empty() ? "the values to restore" : name.c_str(), array));
  }
  return links_.first().call<Result<std::set<std::string>>>(lock_, [&state](Channel& channel, kj::Timer&) {
    return psd::sendState(channel.connection(), channel.terms(), state);
  });
}

Status RpcClient::applyState(const std::vector<uint64_t>& steps) {
  return links_.first().call<Status>(
      lock_, [&steps](Channel& channel, kj::Timer&) { return psd::applyState(channel.connection(), steps); });
}

Status RpcClient::restoreState(const StateToRestore& state) {
  for (;;) {
    const uint64_t connection = links_.number();
    const Result<std::set<std::string>> names = sendState(state);
    Status status = names.ok() ? checkStates(state, *names) : names.status();
    if (status.ok()) status = applyState(state.steps);
    if (status.ok() || !hasEnded()) return status;
    PSD_RETURN_IF_ERROR(recover(connection, status.error()));
  }
}

}  // namespace psd

#include "trainer/python/python_fragments.h"

#include <utility>

#include "trainer/python/errors.h"

namespace psd::python {

PythonFragments::PythonFragments(std::shared_ptr<SharedClient> client, const JoinInfo& info,
                                 Values parameters, Values spare)
    : client_(std::move(client)), state_(std::make_shared<State>()) {
  state_->parameters = std::move(parameters);
  state_->spare = std::move(spare);
  const FragmentExchange::Observer observer{[state = state_.get()](const PushInfo& answer) {
                                              state->lastPush = answer;
                                              if (answer.outcome != PushOutcome::applied) state->late++;
                                            },
                                            [state = state_.get()] { state->late++; }};
  client_->run([&](Client& client) {
    state_->exchange.emplace(client, info.local, info.shards, observer);
    return true;
  });
}

PythonFragments::~PythonFragments() {
  if (state_) client_->holdUntil([state = std::move(state_)] { return state->finished(); });
}

void PythonFragments::begin() {
  check(
      run([](State& state) { return state.exchange->begin(spanOf(state.parameters), spanOf(state.spare)); }));
}

bool PythonFragments::stepped(uint32_t samples) {
  return run([samples](State& state) {
    state.exchange->stepped(samples);
    return state.exchange->due(false);
  });
}

bool PythonFragments::due() {
  return run([](State& state) { return state.exchange->due(false); });
}

void PythonFragments::exchange(bool last) {
  check(run([last](State& state) {
    const Status exchanged = state.exchange->exchange(last);
    return exchanged.ok() ? state.exchange->ready() : exchanged;
  }));
}

void PythonFragments::settle() {
  check(run([](State& state) { return state.exchange->settle(); }));
}

uint64_t PythonFragments::progress() {
  return run([](State& state) { return state.exchange->progress(); });
}

uint64_t PythonFragments::rounds() {
  return run([](State& state) { return state.exchange->rounds(); });
}

std::vector<uint64_t> PythonFragments::versions() {
  return run([](State& state) {
    std::vector<uint64_t> numbers;
    for (const Version version : state.exchange->versions()) numbers.push_back(version.value);
    return numbers;
  });
}

std::optional<PushInfo> PythonFragments::lastPush() {
  return run([](State& state) { return state.lastPush; });
}

uint64_t PythonFragments::late() {
  return run([](State& state) { return state.late; });
}

}  // namespace psd::python

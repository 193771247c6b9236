#include "trainer/python/python_fragments.h"

#include <utility>

#include "trainer/python/errors.h"

namespace psd::python {

PythonFragments::PythonFragments(std::shared_ptr<SharedClient> client, const JoinInfo& info,
                                 Values parameters, Values spare)
    : client_(std::move(client)), state_(std::make_shared<State>()) {
  state_->parameters = std::move(parameters);
  state_->spare = std::move(spare);
  const auto update = [state = state_.get()](const auto& change) {
    const std::lock_guard lock(state->progressMutex);
    change(state->progress);
  };
  const FragmentExchange::Observer observer{
      [update](const PushInfo& answer) {
        update([&](Progress& progress) {
          progress.lastPush = answer;
          if (answer.outcome != PushOutcome::applied) progress.late++;
        });
      },
      [update] { update([](Progress& progress) { progress.late++; }); }};
  client_->run([&](Client& client) {
    state_->exchange.emplace(client, info.local, info.shards, observer);
    return true;
  });
}

PythonFragments::~PythonFragments() {
  if (state_) client_->holdUntil([state = std::move(state_)] { return state->exchange->finished(); });
}

void PythonFragments::State::publish() {
  if (exchange->versions().empty()) return;  // begin() has failed
  const std::lock_guard lock(progressMutex);
  progress.steps = exchange->progress();
  progress.rounds = exchange->rounds();
  progress.versions.clear();
  for (const Version version : exchange->versions()) progress.versions.push_back(version.value);
}

void PythonFragments::begin() {
  check(run([state = state_.get()](FragmentExchange& exchange) {
    return exchange.begin(spanOf(state->parameters), spanOf(state->spare));
  }));
}

bool PythonFragments::stepped(uint32_t samples) {
  return run([samples](FragmentExchange& exchange) {
    exchange.stepped(samples);
    return exchange.due(false);
  });
}

bool PythonFragments::due() {
  return run([](FragmentExchange& exchange) { return exchange.due(false); });
}

void PythonFragments::exchange(bool last) {
  check(run([last](FragmentExchange& exchange) {
    const Status exchanged = exchange.exchange(last);
    return exchanged.ok() ? exchange.ready() : exchanged;
  }));
}

void PythonFragments::settle() {
  check(run([](FragmentExchange& exchange) { return exchange.settle(); }));
}

PythonFragments::Progress PythonFragments::progress() const {
  client_->checkUsable();
  const std::lock_guard lock(state_->progressMutex);
  return state_->progress;
}

}  // namespace psd::python

#include "server/hosting/checkpoint_requests.h"

#include <utility>

#include <spdlog/spdlog.h>

namespace psd {

kj::Promise<CheckpointRequests::Outcome> CheckpointRequests::ask() {
  auto asked = kj::newPromiseAndFulfiller<Outcome>();
  next_.push_back(kj::mv(asked.fulfiller));
  if (served_.empty()) begin();
  return kj::mv(asked.promise);
}

void CheckpointRequests::begin() {
  std::swap(served_, next_);
  tasks_.add(kj::evalNow([this] { return take_(); })
                 .catch_([](kj::Exception&& exception) {
                   return Outcome(ErrorCode::internal, exception.getDescription().cStr());
                 })
                 .then([this](const Outcome& outcome) { end(outcome); }));
}

void CheckpointRequests::end(const Outcome& outcome) {
  for (auto& waiting : served_) waiting->fulfill(Outcome(outcome));
  served_.clear();
  if (!next_.empty()) begin();
}

void CheckpointRequests::taskFailed(kj::Exception&& exception) {
  spdlog::error("requested checkpoint: {}", exception.getDescription().cStr());
}

}  // namespace psd

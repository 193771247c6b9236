// The side of PushServer that tells the control loop what became of samples.

#include "server/rpc/control.h"
#include "server/rpc/push_server.h"

namespace psd {

void PushServer::tellOfSamples(const StepPush& step) {
  if (!home_->environment().dealsSamples) return;
  SessionId session = trainer_.session;
  bool applied = step.outcome->ok() && (*step.outcome)->applied();
  for (size_t shard = 0; shard < step.parts.size(); shard++) {
    const auto& part = step.parts[shard];
    if (!part) {  // an earlier session brought it in
      const PushAnswer* before = ofShards_[shard].find(step.number);
      applied = applied || (before && before->applied());
      continue;
    }
    session = part->trainer.session;
    applied = applied || (part->fate && !part->dropped());
  }
  home_->detach(home_->onControl([session, number = step.number, applied](Control& control) {
    control.samples().stepOver(session, number, applied);
  }));
}

void PushServer::tellOfSamplesAgain(Step step) {
  if (!home_->environment().dealsSamples || steps_.contains(step)) return;
  bool applied = false;
  for (const auto& answers : ofShards_) {
    const PushAnswer* answer = answers.find(step);
    if (!answer && !dropped_.find(step)) return;
    applied = applied || (answer && answer->applied());
  }
  home_->detach(home_->onControl([session = trainer_.session, step, applied](Control& control) {
    control.samples().stepOver(session, step, applied);
  }));
}

}  // namespace psd

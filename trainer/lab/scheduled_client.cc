#include "trainer/lab/scheduled_client.h"

namespace psd {
namespace {

/// A call during which other trainers may run. Used by the trainer's thread.
template <class Info>
class ScheduledCall final : public Pending<Info>::Impl {
 public:
  ScheduledCall(Pending<Info> call, Turns& turns, Rank rank)
      : call_(std::move(call)), turns_(turns), rank_(rank) {}

  /// Always false: in virtual time, polling would depend on the speed of the machine.
  bool done() const override { return false; }
  bool finished() const override { return call_.finished(); }
  Result<Info> wait() override {
    while (!call_.done()) turns_.awaitCall(rank_);
    return call_.wait();
  }

 private:
  Pending<Info> call_;
  Turns& turns_;
  const Rank rank_;
};

/// Resolves when a trainer has taken its number of local steps. Used by the trainer's thread.
class VirtualRoundDue final : public Pending<RoundDue>::Impl {
 public:
  VirtualRoundDue(const VirtualPaces& paces, Rank rank) : paces_(paces), rank_(rank) {}

  bool done() const override { return paces_.due(rank_); }
  bool finished() const override { return true; }
  Result<RoundDue> wait() override { return RoundDue::stepsDone; }  // called only once done()

 private:
  const VirtualPaces& paces_;
  const Rank rank_;
};

}  // namespace

Result<JoinInfo> ScheduledClient::join(const Membership& membership, const ModelSpec& model,
                                       const std::function<ConstArenaValues()>& initialValues) {
  PSD_ASSIGN_OR_RETURN(JoinInfo joined, client_.join(membership, model, initialValues));
  paces_.initialize(joined);
  return joined;
}

Pending<RoundDue> ScheduledClient::roundDue(Version version) {
  if (!paces_.enabled()) return client_.roundDue(version);
  paces_.begins(rank_);
  return Pending<RoundDue>(std::make_unique<VirtualRoundDue>(paces_, rank_));
}

Pending<PullInfo> ScheduledClient::pull(ArenaValues destination, RowBatch* rows) {
  return Pending<PullInfo>(
      std::make_unique<ScheduledCall<PullInfo>>(client_.pull(destination, rows), turns_, rank_));
}

Pending<PullInfo> ScheduledClient::pullFragment(ArenaValues destination, uint32_t fragment) {
  return Pending<PullInfo>(
      std::make_unique<ScheduledCall<PullInfo>>(client_.pullFragment(destination, fragment), turns_, rank_));
}

Pending<PushInfo> ScheduledClient::push(Step step, ConstArenaValues gradient, GradientInfo behind,
                                        const std::vector<Version>& basis, const RowBatch* rows) {
  if (paces_.enabled()) paces_.pushes(rank_, behind.localSteps);
  return Pending<PushInfo>(std::make_unique<ScheduledCall<PushInfo>>(
      client_.push(step, pushed(gradient, behind), behind, basis, rows), turns_, rank_));
}

}  // namespace psd

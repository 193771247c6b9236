#pragma once

#include "trainer/client/api/client.h"
#include "trainer/executor/remote/remote_steps.h"

namespace psd {

/// The daemon behind an executor, as a Client for the training loop. A pull transfers nothing, since the
/// parameters stay at the executor; a push makes the backward pass and the step of RemoteModel's forward
/// pass. Owned by the thread of `steps`, which outlives it.
class RemoteClient final : public Client {
 public:
  explicit RemoteClient(RemoteSteps& steps) : steps_(steps) {}

  Result<JoinInfo> join(const Membership& membership, const ModelSpec& model,
                        const std::function<ConstArenaValues()>& initialValues) override;
  /// Not supported: readers connect to the daemon.
  Result<JoinInfo> observe(const ModelSpec& model) override;
  Pending<PullInfo> pull(ArenaValues destination, RowBatch* rows) override;
  Pending<PushInfo> push(Step step, ConstArenaValues gradient, GradientInfo behind,
                         const std::vector<Version>& basis, const RowBatch* rows) override;
  /// Not supported: only the executor knows which elements of a gradient are final.
  std::unique_ptr<PartialPush> beginPush(Step step, ConstArenaValues gradient, GradientInfo behind,
                                         const std::vector<Version>& basis, const RowBatch* rows) override;
  /// Not supported: it would not measure the daemon.
  Result<PingInfo> ping(uint64_t calls, uint32_t outstanding) override;
  Status leave() override { return steps_.leave(); }
  void interrupt() override { steps_.interrupt(); }
  uint64_t bytesPulled() const override { return 0; }
  uint64_t bytesPushed() const override { return 0; }

 private:
  RemoteSteps& steps_;
};

}  // namespace psd

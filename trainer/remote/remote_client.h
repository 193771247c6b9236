#pragma once

#include "trainer/client/client.h"
#include "trainer/remote/remote_steps.h"

namespace psd {

/// The daemon behind an executor, for the training loop: a pull brings nothing, as the parameters stay there,
/// and a push is the backward pass and the step of what RemoteModel has computed. Owned by the thread of
/// `steps`, which outlives it.
class RemoteClient final : public Client {
 public:
  explicit RemoteClient(RemoteSteps& steps) : steps_(steps) {}

  Result<JoinInfo> join(const Membership& membership, const ModelSpec& model,
                        const std::function<std::span<const float>()>& initialValues) override;
  /// Refused: who is no trainer asks the daemon.
  Result<JoinInfo> observe(const ModelSpec& model) override;
  Pending<PullInfo> pull(std::span<float> destination, RowBatch* rows) override;
  Pending<PushInfo> push(Step step, std::span<const float> gradient, Behind behind,
                         const std::vector<Version>& basis, const RowBatch* rows) override;
  /// Refused: what is final of a gradient is known at the executor.
  std::unique_ptr<PartialPush> beginPush(Step step, std::span<const float> gradient, Behind behind,
                                         const std::vector<Version>& basis, const RowBatch* rows) override;
  /// Refused: an executor's daemon has no rounds of local steps.
  Pending<RoundDue> roundDue(Version version) override;
  /// Refused: it would measure something else than a daemon.
  Result<PingInfo> ping(uint64_t calls, uint32_t outstanding) override;
  Status leave() override { return steps_.leave(); }
  void interrupt() override { steps_.interrupt(); }
  uint64_t bytesPulled() const override { return 0; }
  uint64_t bytesPushed() const override { return 0; }

 private:
  RemoteSteps& steps_;
};

}  // namespace psd

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "trainer/client/api/client.h"
#include "trainer/lab/pushed_noise.h"
#include "trainer/lab/turns.h"
#include "trainer/lab/virtual_paces.h"

namespace psd {

/// The client of a virtual trainer: a wait for a pull or push yields the turn to other trainers until the
/// call is done, as its answer may depend on them. With `noise`, the noise is pushed instead of the gradients
/// of dense parameters. If the daemon would notify slower trainers by its clock to push earlier, `paces` does
/// so in virtual time. All other calls are forwarded to the underlying client. Owned by the trainer's thread;
/// the underlying client outlives it, and `paces` is used by the thread that has the turn.
class ScheduledClient final : public Client, private Rounds, private Fragments {
 public:
  ScheduledClient(Client& client, Turns& turns, VirtualPaces& paces, Rank rank,
                  std::optional<PushedNoise> noise = {})
      : client_(client), turns_(turns), paces_(paces), rank_(rank), noise_(std::move(noise)) {}

  Result<JoinInfo> join(const Membership& membership, const ModelSpec& model,
                        const std::function<ConstArenaValues()>& initialValues) override;
  Result<JoinInfo> observe(const ModelSpec& model) override { return client_.observe(model); }
  Pending<PullInfo> pull(ArenaValues destination, RowBatch* rows = nullptr) override;
  RowBatch makeRowBatch() const override { return client_.makeRowBatch(); }
  Pending<PushInfo> push(Step step, ConstArenaValues gradient, GradientInfo behind,
                         const std::vector<Version>& basis, const RowBatch* rows = nullptr) override;
  std::unique_ptr<PartialPush> beginPush(Step step, ConstArenaValues gradient, GradientInfo behind,
                                         const std::vector<Version>& basis,
                                         const RowBatch* rows = nullptr) override {
    return client_.beginPush(step, pushed(gradient, behind), behind, basis, rows);
  }
  Pending<RoundDue> roundDue(Version version) override;
  Pending<PullInfo> pullFragment(ArenaValues destination, uint32_t fragment) override;
  Pending<RoundDue> fragmentDue(const std::vector<Version>& basis, uint32_t fragment) override {
    return client_.fragmentDue(basis, fragment);
  }
  Result<PingInfo> ping(uint64_t calls, uint32_t outstanding) override {
    return client_.ping(calls, outstanding);
  }
  Status leave() override { return client_.leave(); }
  void interrupt() override { client_.interrupt(); }
  uint64_t bytesPulled() const override { return client_.bytesPulled(); }
  uint64_t bytesPushed() const override { return client_.bytesPushed(); }

 private:
  Rounds* rounds() override { return this; }
  Fragments* fragments() override { return this; }

  ConstArenaValues pushed(ConstArenaValues gradient, const GradientInfo& behind) {
    return noise_ && !gradient.empty() ? ConstArenaValues(noise_->draw(behind.fragment)) : gradient;
  }

  Client& client_;
  Turns& turns_;
  VirtualPaces& paces_;
  const Rank rank_;
  std::optional<PushedNoise> noise_;
};

}  // namespace psd

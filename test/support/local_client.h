#pragma once

#include <functional>
#include <future>
#include <memory>
#include <span>
#include <vector>

#include "server/service/join_service.h"
#include "trainer/client/api/client.h"
#include "trainer/client/api/failed_call.h"
#include "trainer/client/transport/row_slices.h"
#include "trainer/client/transport/slices.h"

namespace psd::testing {

class LocalSession;

/// A trainer or reader in the daemon's own process: a Client over the daemon's services on one of its event
/// loops, without a socket and without messages.
///
/// Owned by one thread, not one of the daemon's, and destroyed before the daemon's Server. It never
/// reconnects: the first fault is final.
class LocalClient final : public Client, private SampleSource {
 public:
  /// `control` outlives it. `sliceElements`: the maximum per slice; the daemon may allow less.
  LocalClient(std::shared_ptr<EventLoop> loop, ControlLoop& control, uint64_t sliceElements = 256 << 10);
  ~LocalClient() override;

  Result<JoinInfo> join(const Membership& membership, const ModelSpec& model,
                        const std::function<ConstArenaValues()>& initialValues) override;
  Result<JoinInfo> observe(const ModelSpec& model) override;
  Pending<PullInfo> pull(ArenaValues destination, RowBatch* rows = nullptr) override;
  RowBatch makeRowBatch() const override {
    return RowBatch(tables_, static_cast<uint32_t>(rowShards_.size()));
  }
  Pending<PushInfo> push(Step step, ConstArenaValues gradient, GradientInfo behind,
                         const std::vector<Version>& basis, const RowBatch* rows = nullptr) override;
  std::unique_ptr<PartialPush> beginPush(Step step, ConstArenaValues gradient, GradientInfo behind,
                                         const std::vector<Version>& basis,
                                         const RowBatch* rows = nullptr) override;
  SampleSource* sampleSource() override { return this; }
  Result<AssignedSamples> takeSamples(const SamplesRequest& request) override;
  Result<PingInfo> ping(uint64_t calls, uint32_t outstanding) override;
  Status leave() override;
  void interrupt() override;
  uint64_t bytesPulled() const override;
  uint64_t bytesPushed() const override;

 private:
  class Sending;

  /// Runs `work()` on the loop, unless the loop has ended.
  template <class Work>
  void onLoop(Work work);
  /// Starts `work(session)`, which returns a promise, on the loop. Returns an Error if the session or the
  /// loop ends before the promise resolves.
  template <class T, class Work>
  std::future<Result<T>> start(Work work);
  /// Cuts the model into slices of the size that the daemon allows.
  void learnPlan();
  Status checkSize(size_t elements) const;
  uint32_t blockCount() const;
  /// The slices of a batch's rows that the daemon accepts; null: of a gradient without rows.
  std::vector<RowSlice> cut(const RowBatch* rows) const;

  const std::shared_ptr<EventLoop> loop_;
  std::shared_ptr<LocalSession> session_;  // used on the loop only
  ShardPlan plan_;                         // like the next, set by join() or observe()
  std::vector<Slice> slices_;
  std::vector<TableSpec> tables_;
  std::vector<RowShardTerms> rowShards_;
  uint64_t sliceElements_;
};

}  // namespace psd::testing

#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/plan/model_partitions.h"
#include "trainer/client/calls_to_all.h"
#include "trainer/client/client.h"
#include "trainer/client/rpc_client.h"

namespace psd {

/// The Client of a model that several daemons serve together. It has a client for each of them, which joins,
/// pulls and pushes the daemon's partition and comes back by itself when its connection breaks. The first
/// daemon, the lead, gives the rank and the samples, and says who brings the initial values.
///
/// Each daemon counts its trainers by itself. A trainer joins the lead first and leaves it last. Owned by one
/// thread.
class PartitionedClient final : public MovableClient, private CalledDaemons {
 public:
  /// One of the daemons.
  struct Daemon {
    std::unique_ptr<RpcClient> client;  ///< connected
    std::string name;               ///< for people: "daemon 1 of 2, tcp://host:5500"; the first is daemon 0
    ModelPartition partition = {};  ///< once there is a model
  };
  /// `daemons`: all of them, in the order of their partitions. `retryTimeout`: how long to ask a daemon for a
  /// rank that the lead has given. `resumable`: as ClientOptions has it.
  PartitionedClient(std::vector<Daemon> daemons, std::chrono::milliseconds retryTimeout, bool resumable)
      : daemons_(std::move(daemons)), retryTimeout_(retryTimeout), resumable_(resumable) {
    for (const Daemon& daemon : daemons_) {
      daemon.client->whenElsewhere([this] { return !movedTo({}).empty(); });
    }
  }

  /// By what the lead says: it is told of a move last.
  bool moveAsked() const override { return daemons_.front().client->moveAsked(); }
  /// As any of them says.
  DaemonPlaces movedTo(std::chrono::milliseconds within) const override;
  Result<DaemonPlaces> stepAside() override;
  MovedFrom movedFrom() const override { return daemons_.front().client->movedFrom(); }
  void comeFrom(const MovedFrom& before) override;
  bool stayOnDevice() override { return false; }
  Result<JoinInfo> join(const Membership& membership, const ModelSpec& model,
                        const std::function<std::span<const float>()>& initialValues) override;
  Result<JoinInfo> observe(const ModelSpec& model) override;
  Pending<PullInfo> pull(std::span<float> destination, RowBatch* rows = nullptr) override;
  RowBatch makeRowBatch() const override;
  Pending<PushInfo> push(Step step, std::span<const float> gradient, Behind behind,
                         const std::vector<Version>& basis, const RowBatch* rows = nullptr) override;
  std::unique_ptr<PartialPush> beginPush(Step step, std::span<const float> gradient, Behind behind,
                                         const std::vector<Version>& basis,
                                         const RowBatch* rows = nullptr) override;
  /// Of the lead's rounds.
  Pending<RoundDue> roundDue(Version version) override { return lead().roundDue(version); }
  Pending<PullInfo> pullFragment(std::span<float> destination, uint32_t fragment) override;
  Pending<RoundDue> fragmentDue(const std::vector<Version>& basis, uint32_t fragment) override;
  Result<DealtSamples> takeSamples(const SamplesRequest& request) override;
  Status report(Step step, std::span<const NamedValue> values) override {
    return lead().report(step, values);
  }
  /// Of who waits at any of the daemons.
  Result<std::vector<Rank>> waiters() override;
  Result<PingInfo> ping(uint64_t calls, uint32_t outstanding) override {
    return lead().ping(calls, outstanding);
  }
  Status leave() override;
  void interrupt() override;
  uint64_t bytesPulled() const override;
  uint64_t bytesPushed() const override;

 private:
  static Error named(const Daemon& daemon, const Error& error);
  RpcClient& lead() { return *daemons_.front().client; }
  /// Finds the partitions of `model`, an Error where it cannot be cut.
  Status divide(const ModelSpec& model);
  /// Joins all but the lead, which has given this trainer its rank. `values`: of the whole model, where this
  /// trainer is to bring them.
  Status joinOthers(const std::optional<std::span<const float>>& values);
  Status joinOther(Daemon& daemon, const std::optional<std::span<const float>>& values);
  Result<JoinInfo> joinAtRank(Daemon& daemon, const std::function<std::span<const float>()>& bring);
  /// From now on the daemon is brought the newest values, should it come back without a model.
  void bringNewest(Daemon& daemon);
  std::span<const float> partOf(std::span<const float> all, const Daemon& daemon) const;
  /// Whether the daemons go by the same rules, and these are for the model.
  Status checkRules() const;
  /// Whether they have its tensors in the fragments that all agree on, after checkRules().
  Status checkFragments(const JoinInfo& info, const ModelSpec& model) const;
  JoinInfo describe() const;
  /// The shards of all daemons, as those of the whole model.
  std::vector<ShardRange> shardsOfAll() const;
  /// Which daemons have a part of this fragment, or of any; an Error where there is no such fragment.
  Result<std::vector<size_t>> holdersOf(std::optional<uint32_t> fragment) const;
  Status checkLength(const char* what, size_t elements) const;
  /// Whether the batch, which may be null, is one of makeRowBatch().
  Status checkRows(const RowBatch* rows) const;
  /// The daemon's rows of the batch, which may be null.
  static std::shared_ptr<RowBatch> rowsOf(const RowBatch* all, uint32_t daemon);

  CalledDaemons& daemons() { return *this; }
  const ModelPartition& partitionOf(size_t daemon) const override { return daemons_[daemon].partition; }
  VersionsOfAll versions() const override;
  Error failed(size_t daemon, const Error& error) override;

  std::vector<Daemon> daemons_;
  const std::chrono::milliseconds retryTimeout_;
  const bool resumable_;
  std::function<std::span<const float>()> newestValues_;
  std::vector<TableSpec> tables_;
  uint64_t elements_ = 0;  // of the whole model
  size_t ending_ = 0;      // the daemon that refused a part of the newest call because it ends; else the lead
};

}  // namespace psd

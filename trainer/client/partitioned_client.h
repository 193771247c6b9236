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
#include "trainer/client/api/client.h"
#include "trainer/client/calls_to_all.h"
#include "trainer/client/rpc_client.h"

namespace psd {

/// The Client of a model that several daemons serve together. It has one client per daemon, which joins,
/// pulls and pushes the daemon's partition and reconnects independently. The first daemon, the lead, assigns
/// ranks and samples and chooses the initializer.
///
/// Each daemon tracks its trainers independently. A trainer joins the lead first and leaves it last. Used
/// with the client's lock held, which calls leave while they wait.
class PartitionedClient final : public MovableClient,
                                private Rounds,
                                private Fragments,
                                private StateExchange,
                                private SampleSource,
                                private Monitoring,
                                private ModelBuffers,
                                private Operations,
                                private CalledDaemons {
 public:
  /// One of the daemons.
  struct Daemon {
    std::unique_ptr<RpcClient> client;  ///< connected
    /// Human-readable: "daemon 1 of 2, tcp://host:5500"; the first is daemon 0.
    std::string name;
    ModelPartition partition = {};  ///< set once the model is known
    uint64_t nativeBegin = 0;       ///< byte of its first element in a native arena; set with `partition`
  };
  /// `daemons`: all of them, in partition order. `retryTimeout`: how long to retry at a daemon where the rank
  /// that the lead assigned is still taken. `resumable`: see ClientOptions.
  PartitionedClient(std::vector<Daemon> daemons, std::chrono::milliseconds retryTimeout, bool resumable,
                    ClientLock& lock)
      : daemons_(std::move(daemons)), retryTimeout_(retryTimeout), resumable_(resumable), lock_(lock) {
    for (const Daemon& daemon : daemons_) {
      daemon.client->setElsewhereCheck([this] { return !movedTo({}).empty(); });
    }
  }

  /// The lead decides: it is notified of a move last.
  bool pendingMove() const override { return daemons_.front().client->pendingMove(); }
  /// As reported by any daemon.
  DaemonAddresses movedTo(std::chrono::milliseconds within) const override;
  Result<DaemonAddresses> quiesce() override;
  MovedFrom movedFrom() const override { return daemons_.front().client->movedFrom(); }
  void setMovedFrom(const MovedFrom& before) override;
  bool stayOnDevice() override { return false; }
  Result<JoinInfo> join(const Membership& membership, const ModelSpec& model,
                        const std::function<ConstArenaValues()>& initialValues) override;
  Result<JoinInfo> observe(const ModelSpec& model) override;
  Pending<PullInfo> pull(ArenaValues destination, RowBatch* rows = nullptr) override;
  RowBatch makeRowBatch() const override;
  Pending<PushInfo> push(Step step, ConstArenaValues gradient, GradientInfo behind,
                         const std::vector<Version>& basis, const RowBatch* rows = nullptr) override;
  std::unique_ptr<PartialPush> beginPush(Step step, ConstArenaValues gradient, GradientInfo behind,
                                         const std::vector<Version>& basis,
                                         const RowBatch* rows = nullptr) override;
  /// Of the lead's rounds.
  Pending<RoundDue> roundDue(Version version) override { return lead().roundDue(version); }
  Pending<PullInfo> pullFragment(ArenaValues destination, uint32_t fragment) override;
  Pending<RoundDue> fragmentDue(const std::vector<Version>& basis, uint32_t fragment) override;
  Result<OptimizerState> fetchState() override;
  Status restoreState(const StateToRestore& state) override;
  Result<AssignedSamples> takeSamples(const SamplesRequest& request) override;
  Status report(Step step, std::span<const NamedValue> values) override {
    return lead().report(step, values);
  }
  /// The lead has the buffers.
  Status setBuffers(std::vector<std::byte> file) override { return lead().setBuffers(std::move(file)); }
  Result<std::vector<std::byte>> buffers() override { return lead().buffers(); }
  Result<std::vector<std::string>> status() override;
  Result<std::vector<std::string>> set(const std::string& assignment) override;
  Result<std::vector<std::string>> checkpoint() override;
  /// The trainers that wait at any of the daemons.
  Result<std::vector<Rank>> waiters() override;
  Result<PingInfo> ping(uint64_t calls, uint32_t outstanding) override {
    return lead().ping(calls, outstanding);
  }
  Status leave() override;
  void interrupt() override;
  uint64_t bytesPulled() const override;
  uint64_t bytesPushed() const override;

 private:
  Rounds* rounds() override { return this; }
  Fragments* fragments() override { return this; }
  StateExchange* stateExchange() override { return this; }
  SampleSource* sampleSource() override { return this; }
  Monitoring* monitoring() override { return this; }
  ModelBuffers* modelBuffers() override { return this; }
  Operations* operations() override { return this; }
  /// The answers of `call(client)`, an operator's call, at all daemons; `done`: what those before one that
  /// fails have done.
  template <class Call>
  Result<std::vector<std::string>> askAll(const Call& call, const char* done);

  static Error named(const Daemon& daemon, const Error& error);
  RpcClient& lead() { return *daemons_.front().client; }
  /// Computes the partitions of `model`; an Error if it cannot be partitioned.
  Status divide(const ModelSpec& model);
  /// Joins all daemons except the lead, which has assigned the rank. `values`: of the whole model, if this
  /// trainer is the initializer.
  Status joinOthers(const std::optional<ConstArenaValues>& values);
  Status joinOther(Daemon& daemon, const std::optional<ConstArenaValues>& values);
  Result<JoinInfo> joinAtRank(Daemon& daemon, const std::function<ConstArenaValues()>& initialize);
  /// From now on this trainer sends its newest values if the daemon restarts without a model.
  void useNewestValues(Daemon& daemon);
  ConstArenaValues partOf(ConstArenaValues all, const Daemon& daemon) const;
  /// Checks that all daemons have the same rules, and that these suit the model.
  Status checkRules() const;
  /// After checkRules(): checks that all daemons assign the model's tensors to the agreed fragments.
  Status checkFragments(const JoinInfo& info, const ModelSpec& model) const;
  JoinInfo describe() const;
  /// The shards of all daemons, renumbered as those of the whole model.
  std::vector<ShardRange> shardsOfAll() const;
  /// The daemons that hold part of `fragment`, or all if empty; an Error if there is no such fragment.
  Result<std::vector<size_t>> holdersOf(std::optional<uint32_t> fragment) const;
  Status checkLength(const char* what, size_t elements) const;
  /// Checks that the batch, which may be null, is from makeRowBatch().
  Status checkRows(const RowBatch* rows) const;
  /// The daemon's rows of the batch, which may be null.
  static std::shared_ptr<RowBatch> rowsOf(const RowBatch* all, uint32_t daemon);

  CalledDaemons& daemons() { return *this; }
  const ModelPartition& partitionOf(size_t daemon) const override { return daemons_[daemon].partition; }
  CombinedVersions versions() const override;
  Error failed(size_t daemon, const Error& error) override;
  bool ended() const override { return ended_; }

  std::vector<Daemon> daemons_;
  const std::chrono::milliseconds retryTimeout_;
  const bool resumable_;
  ClientLock& lock_;
  std::function<ConstArenaValues()> newestValues_;
  std::vector<TableSpec> tables_;
  uint64_t elements_ = 0;  // of the whole model
  bool ended_ = false;     // a daemon is lost for good
  // The daemon that refused a part of the newest call because it is shutting down; else the lead.
  size_t ending_ = 0;
};

}  // namespace psd

#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/plan/model_partitions.h"
#include "trainer/client/client.h"
#include "trainer/client/rpc_client.h"

namespace psd {

/// The Client of a model that several daemons serve together. It has a client for each of them, which joins,
/// pulls and pushes the daemon's partition and comes back by itself when its connection breaks. The first
/// daemon, the lead, gives the rank and the samples, and says who brings the initial values.
///
/// Each daemon counts its trainers by itself. A trainer joins the lead first and leaves it last. Owned by one
/// thread.
class PartitionedClient final : public Client {
 public:
  /// Connects to all daemons, those that `first` has told of, within the options' timeout each.
  static Result<std::unique_ptr<Client>> connect(const ClientOptions& options, const RpcClient& first);

  Result<JoinInfo> join(const Membership& membership, const ModelSpec& model,
                        const std::function<std::span<const float>()>& initialValues) override;
  Result<JoinInfo> observe(const ModelSpec& model) override;
  Pending<PullInfo> pull(std::span<float> destination, RowBatch* rows = nullptr) override;
  RowBatch makeRowBatch() const override;
  Pending<PushInfo> push(Step step, std::span<const float> gradient, uint32_t samples,
                         const std::vector<Version>& basis, const RowBatch* rows = nullptr) override;
  std::unique_ptr<PartialPush> beginPush(Step step, std::span<const float> gradient, uint32_t samples,
                                         const std::vector<Version>& basis,
                                         const RowBatch* rows = nullptr) override;
  Result<DealtSamples> takeSamples(const SamplesRequest& request) override;
  Status report(Step step, std::span<const NamedValue> values) override {
    return lead().report(step, values);
  }
  Result<PingInfo> ping(uint64_t calls, uint32_t outstanding) override {
    return lead().ping(calls, outstanding);
  }
  Status leave() override;
  void interrupt() override;
  uint64_t bytesPulled() const override;
  uint64_t bytesPushed() const override;

 private:
  struct Daemon {
    std::unique_ptr<RpcClient> client;
    std::string name;  // for people: "daemon 1 of 2, tcp://host:5500"
    ModelPartition partition;
    JoinInfo info;
  };
  class PullOfAll;
  class PushOfAll;
  class PartialPushToAll;

  explicit PartitionedClient(std::vector<Daemon> daemons) : daemons_(std::move(daemons)) {}

  RpcClient& lead() { return *daemons_.front().client; }
  /// The partitions of `model`, an Error where it cannot be cut.
  Status divide(const ModelSpec& model);
  /// Joins all but the lead, which has given this trainer its rank.
  Status joinOthers();
  Status joinOther(Daemon& daemon);
  /// The lead's part of the first values, which this trainer brings to all.
  std::span<const float> bringToAll();
  /// The newest values of a daemon's partition.
  std::span<const float> valuesOf(const Daemon& daemon) const;
  /// Whether the daemons go by the same rules.
  Status checkRules() const;
  JoinInfo describe() const;
  Status checkLength(const char* what, size_t elements) const;
  /// Whether the batch, which may be null, is one of makeRowBatch().
  Status checkRows(const RowBatch* rows) const;
  /// Final where a call to one daemon has failed for good: whoever waits for the others need not any more.
  void giveUpOthers(const Error& error);
  /// What a daemon said last: one that came back may have other shards.
  const JoinInfo& infoOf(const Daemon& daemon) const;
  /// Where the versions of a daemon's shards, and of its row shards, are among those of all.
  std::pair<size_t, size_t> versionsAt(size_t daemon) const;
  void placeVersions(size_t daemon, const std::vector<Version>& own, std::vector<Version>& all) const;
  std::vector<Version> versionsOf(size_t daemon, const std::vector<Version>& all) const;

  /// Rows of calls that nobody waits for, which daemons' clients may still use: until these are gone.
  std::vector<std::shared_ptr<void>> abandoned_;
  std::vector<Daemon> daemons_;
  Membership membership_;
  std::function<std::span<const float>()> initialValues_;
  std::optional<std::span<const float>> firstValues_;  // while the trainer joins and brings them to all
  std::vector<TableSpec> tables_;
  uint64_t elements_ = 0;      // of the whole model
  bool hasJoined_ = false;     // all daemons
  bool bringsValues_ = false;  // the lead has asked for them
  Status others_;              // what came of joining them
};

}  // namespace psd

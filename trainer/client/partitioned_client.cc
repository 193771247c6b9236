#include "trainer/client/partitioned_client.h"

#include <algorithm>

#include <fmt/format.h>

#include "common/text/text.h"
#include "common/types/model_layout.h"

namespace psd {
namespace {

/// An error of one of several daemons.
Error of(const std::string& daemon, const Error& error) {
  Error named = error;
  named.message = daemon + ": " + error.message;
  return named;
}

template <class T>
Pending<T> failedCall(Error error) {
  class Failed final : public Pending<T>::Impl {
   public:
    explicit Failed(Error error) : error_(std::move(error)) {}
    bool done() const override { return true; }
    Result<T> wait() override { return error_; }

   private:
    const Error error_;
  };
  return Pending<T>(std::make_unique<Failed>(std::move(error)));
}

/// A push that was wrong from the start.
class WrongPush final : public PartialPush {
 public:
  explicit WrongPush(Error error) : error_(std::move(error)) {}
  void ready(uint64_t, uint64_t) override {}
  Pending<PushInfo> finish() override { return failedCall<PushInfo>(error_); }

 private:
  const Error error_;
};

/// The first line of two texts in which they differ.
std::pair<std::string, std::string> firstDifference(std::string_view one, std::string_view other) {
  while (!one.empty() || !other.empty()) {
    const std::string_view line = one.substr(0, one.find('\n')), next = other.substr(0, other.find('\n'));
    if (line != next) return {std::string(line), std::string(next)};
    one.remove_prefix(std::min(one.size(), line.size() + 1));
    other.remove_prefix(std::min(other.size(), next.size() + 1));
  }
  return {};
}

/// What the daemons say, each once.
std::string eachOnce(const std::vector<std::string>& texts) {
  std::vector<std::string> found;
  for (const std::string& text : texts) {
    if (std::ranges::find(found, text) == found.end()) found.push_back(text);
  }
  return joined(found, ", ");
}

}  // namespace

// --- Calls to all ---------------------------------------------------------------------------------------

/// The batch's rows, each at the daemon that has them.
using RowsOfDaemons = std::vector<std::unique_ptr<RowBatch>>;

/// A pull from all daemons. Used by the client's thread.
class PartitionedClient::PullOfAll final : public Pending<PullInfo>::Impl {
 public:
  PullOfAll(PartitionedClient& client, std::vector<Pending<PullInfo>> parts,
            std::shared_ptr<RowsOfDaemons> rows)
      : client_(client), parts_(std::move(parts)), rows_(std::move(rows)) {}
  ~PullOfAll() override {
    if (!waited_ && !rows_->empty()) client_.abandoned_.push_back(rows_);
  }

  bool done() const override {
    return std::ranges::all_of(parts_, [](const auto& part) { return part.done(); });
  }
  Result<PullInfo> wait() override {
    waited_ = true;
    PullInfo all;
    std::optional<Error> failed;
    for (size_t i = 0; i < parts_.size(); i++) {
      const Result<PullInfo> part = parts_[i].wait();
      if (!part.ok()) {
        if (!failed) failed = of(client_.daemons_[i].name, part.error());
        client_.giveUpOthers(part.error());
        continue;
      }
      client_.placeVersions(i, part->versions, all.versions);
      all.seconds = std::max(all.seconds, part->seconds);
      all.bytes += part->bytes;
      all.knownRows += part->knownRows;
    }
    if (failed) return *failed;
    return all;
  }

 private:
  PartitionedClient& client_;
  std::vector<Pending<PullInfo>> parts_;
  const std::shared_ptr<RowsOfDaemons> rows_;
  bool waited_ = false;
};

/// The answers of all daemons to a push. Used by the client's thread.
class PartitionedClient::PushOfAll final : public Pending<PushInfo>::Impl {
 public:
  PushOfAll(PartitionedClient& client, std::vector<Pending<PushInfo>> parts,
            std::shared_ptr<RowsOfDaemons> rows)
      : client_(client), parts_(std::move(parts)), rows_(std::move(rows)) {}
  ~PushOfAll() override {
    if (!waited_ && !rows_->empty()) client_.abandoned_.push_back(rows_);
  }

  bool done() const override {
    return std::ranges::all_of(parts_, [](const auto& part) { return part.done(); });
  }
  Result<PushInfo> wait() override {
    waited_ = true;
    PushInfo all;
    std::optional<Error> failed;
    for (size_t i = 0; i < parts_.size(); i++) {
      const Result<PushInfo> part = parts_[i].wait();
      if (!part.ok()) {
        if (!failed) failed = of(client_.daemons_[i].name, part.error());
        client_.giveUpOthers(part.error());
        continue;
      }
      client_.placeVersions(i, part->versions, all.versions);
      all.staleness = std::max(all.staleness, part->staleness);
      all.seconds = std::max(all.seconds, part->seconds);
      all.outcome = std::max(all.outcome, part->outcome);
      all.bytes += part->bytes;
    }
    if (failed) return *failed;
    return all;
  }

 private:
  PartitionedClient& client_;
  std::vector<Pending<PushInfo>> parts_;
  const std::shared_ptr<RowsOfDaemons> rows_;
  bool waited_ = false;
};

/// A push to all daemons that is still being computed. Used by the client's thread.
class PartitionedClient::PartialPushToAll final : public PartialPush {
 public:
  PartialPushToAll(PartitionedClient& client, std::vector<std::unique_ptr<PartialPush>> parts,
                   RowsOfDaemons rows)
      : client_(client), rows_(std::make_shared<RowsOfDaemons>(std::move(rows))), parts_(std::move(parts)) {}

  void ready(uint64_t begin, uint64_t count) override {
    for (size_t i = 0; i < parts_.size(); i++) {
      const ModelPartition& partition = client_.daemons_[i].partition;
      const uint64_t first = std::max(begin, partition.begin);
      const uint64_t end = std::min(begin + count, partition.begin + partition.count);
      if (first < end) parts_[i]->ready(first - partition.begin, end - first);
    }
  }
  Pending<PushInfo> finish() override {
    std::vector<Pending<PushInfo>> answers;
    for (const auto& part : parts_) answers.push_back(part->finish());
    return Pending<PushInfo>(std::make_unique<PushOfAll>(client_, std::move(answers), rows_));
  }

 private:
  PartitionedClient& client_;
  const std::shared_ptr<RowsOfDaemons> rows_;  // outlive the parts
  std::vector<std::unique_ptr<PartialPush>> parts_;
};

// --- Joining --------------------------------------------------------------------------------------------

Result<std::unique_ptr<Client>> PartitionedClient::connect(const ClientOptions& options,
                                                           const RpcClient& first) {
  const DaemonIdentity told = first.identity();
  std::vector<Daemon> daemons;
  for (uint32_t i = 0; i < told.daemons.size(); i++) {
    Daemon& daemon = daemons.emplace_back();
    ClientOptions own = options;
    own.servers = told.daemons[i];
    // The address that the user gave comes first: it may be a Unix socket, through which memory is shared.
    if (i == told.index && std::ranges::find(own.servers, first.server()) == own.servers.end()) {
      own.servers.insert(own.servers.begin(), first.server());
    }
    daemon.name = fmt::format("daemon {} of {}, {}", i, told.daemons.size(), joined(own.servers, " or "));
    for (const std::string& server : own.servers) PSD_RETURN_IF_ERROR(parseAddress(server).status());
    if (first.server().starts_with("tls://") && !tokenInTheClear(options.token, own.servers).empty()) {
      return Error{ErrorCode::invalidArgument,
                   daemon.name +
                       ": the token, which went over TLS so far, would go there in the clear: all "
                       "addresses in `daemons` are to be tls://, unix:// or of this machine"};
    }
    if (options.onEvent) {
      own.onEvent = [tell = options.onEvent, name = daemon.name](const ClientEvent& event) {
        tell({event.what, name + ": " + event.line});
      };
    }
    PSD_ASSIGN_OR_RETURN(auto link, Link::make());
    daemon.client = std::make_unique<RpcClient>(own, std::move(link));
    if (Status status = daemon.client->connect(options.connectTimeout); !status.ok()) {
      return of(daemon.name, status.error());
    }
    const DaemonIdentity& itself = daemon.client->identity();
    if (itself.daemons == told.daemons && itself.index == i) continue;
    return Error{ErrorCode::protocolMismatch,
                 fmt::format("{} says that it is daemon {} of {}; all that serve a model are given the same "
                             "`daemons`, each its own `index`",
                             daemon.name, itself.index, std::max<size_t>(itself.daemons.size(), 1))};
  }
  return std::unique_ptr<Client>(new PartitionedClient(std::move(daemons)));
}

Status PartitionedClient::divide(const ModelSpec& model) {
  PSD_ASSIGN_OR_RETURN(auto partitions, partitionModel(model, static_cast<uint32_t>(daemons_.size())));
  for (size_t i = 0; i < daemons_.size(); i++) daemons_[i].partition = std::move(partitions[i]);
  tables_ = model.tables;
  elements_ = ModelLayout(model).totalElements();
  return {};
}

Result<JoinInfo> PartitionedClient::join(const Membership& membership, const ModelSpec& model,
                                         const std::function<std::span<const float>()>& initialValues) {
  PSD_RETURN_IF_ERROR(divide(model));
  membership_ = membership;
  initialValues_ = initialValues;
  bringsValues_ = hasJoined_ = false;
  others_ = {};
  Daemon& first = daemons_.front();
  const Result<JoinInfo> joined =
      first.client->join(membership, first.partition.spec, [this] { return bringToAll(); });
  firstValues_.reset();
  if (!others_.ok()) return others_.error();
  if (!joined.ok()) return of(first.name, joined.error());
  first.info = *joined;
  if (!hasJoined_) PSD_RETURN_IF_ERROR(joinOthers());
  PSD_RETURN_IF_ERROR(checkRules());
  return describe();
}

std::span<const float> PartitionedClient::bringToAll() {
  bringsValues_ = true;
  if (!hasJoined_) firstValues_ = initialValues_();
  // The lead is last: where it has its values, all have theirs.
  if (!hasJoined_) others_ = joinOthers();
  return others_.ok() ? valuesOf(daemons_.front()) : std::span<const float>();
}

std::span<const float> PartitionedClient::valuesOf(const Daemon& daemon) const {
  const std::span<const float> all = firstValues_ ? *firstValues_ : initialValues_();
  if (all.size() != elements_) return {};  // the daemon's client says so
  return all.subspan(daemon.partition.begin, daemon.partition.count);
}

Status PartitionedClient::joinOthers() {
  for (size_t i = 1; i < daemons_.size(); i++) PSD_RETURN_IF_ERROR(joinOther(daemons_[i]));
  hasJoined_ = true;
  return {};
}

Status PartitionedClient::joinOther(Daemon& daemon) {
  bool lacksValues = false;
  const Membership own{lead().info().rank, lead().info().worldSize, false};
  const auto bring = [this, &daemon, &lacksValues] {
    lacksValues = !bringsValues_;
    return lacksValues ? std::span<const float>() : valuesOf(daemon);
  };
  Result<JoinInfo> joined = daemon.client->join(own, daemon.partition.spec, bring);
  // From now on the newest values, should the daemon come back without a model.
  daemon.client->bringWith([this, &daemon] { return valuesOf(daemon); });
  if (lacksValues && daemon.partition.count > 0) {
    return {ErrorCode::modelMismatch,
            fmt::format("{} has no values, and the daemons before it have some: it came back without what it "
                        "had (`durability` keeps it). Start all daemons anew, or this one with what it had",
                        daemon.name)};
  }
  if (!joined.ok()) return of(daemon.name, joined.error());
  if (bringsValues_ && !joined->broughtInitialValues && daemon.partition.count > 0) {
    return {ErrorCode::modelMismatch,
            fmt::format(
                "{} has values, and the lead has none: it came back without what it had, or who brought the "
                "first values died meanwhile. Trainers that were in bring what they have; else start all "
                "daemons anew",
                daemon.name)};
  }
  daemon.info = *std::move(joined);
  return {};
}

Result<JoinInfo> PartitionedClient::observe(const ModelSpec& model) {
  PSD_RETURN_IF_ERROR(divide(model));
  for (Daemon& daemon : daemons_) {
    Result<JoinInfo> observed = daemon.client->observe(daemon.partition.spec);
    if (!observed.ok()) return of(daemon.name, observed.error());
    daemon.info = *std::move(observed);
  }
  PSD_RETURN_IF_ERROR(checkRules());
  return describe();
}

Status PartitionedClient::checkRules() const {
  const Daemon& first = daemons_.front();
  for (const Daemon& daemon : daemons_) {
    if (daemon.info.rules == first.info.rules) continue;
    const auto [one, other] = firstDifference(first.info.rules, daemon.info.rules);
    return {ErrorCode::invalidArgument,
            fmt::format("daemons that serve a model together go by the same rules, but {} has {}, {} has {}",
                        first.name, one.empty() ? "nothing there" : printable(one, 200), daemon.name,
                        other.empty() ? "nothing there" : printable(other, 200))};
  }
  return {};
}

JoinInfo PartitionedClient::describe() const {
  JoinInfo all = daemons_.front().info;
  std::vector<std::string> devices, pulls, pushes, rows;
  all.shardCount = all.rowShardCount = 0;
  for (const Daemon& daemon : daemons_) {
    all.shardCount += daemon.info.shardCount;
    all.rowShardCount += daemon.info.rowShardCount;
    all.connections = std::max(all.connections, daemon.info.connections);
    devices.push_back(daemon.info.device);
    pulls.push_back(daemon.info.pullTransport == "cuda" ? "rpc" : daemon.info.pullTransport);
    pushes.push_back(daemon.info.pushTransport);
    rows.push_back(daemon.info.rowTransport);
  }
  all.device = fmt::format("{} daemons: {}", daemons_.size(), eachOnce(devices));
  all.pullTransport = eachOnce(pulls);
  all.pushTransport = eachOnce(pushes);
  all.rowTransport = eachOnce(rows);
  return all;
}

// --- In between -----------------------------------------------------------------------------------------

const JoinInfo& PartitionedClient::infoOf(const Daemon& daemon) const {
  return hasJoined_ ? daemon.client->info() : daemon.info;
}

std::pair<size_t, size_t> PartitionedClient::versionsAt(size_t daemon) const {
  size_t shards = 0, all = 0, rows = 0;
  for (size_t i = 0; i < daemons_.size(); i++) {
    if (i < daemon) shards += infoOf(daemons_[i]).shardCount;
    if (i < daemon) rows += infoOf(daemons_[i]).rowShardCount;
    all += infoOf(daemons_[i]).shardCount;
  }
  return {shards, all + rows};
}

void PartitionedClient::placeVersions(size_t daemon, const std::vector<Version>& own,
                                      std::vector<Version>& all) const {
  const auto [shards, rows] = versionsAt(daemon);
  const size_t dense = infoOf(daemons_[daemon]).shardCount;
  for (size_t i = 0; i < own.size(); i++) {
    const size_t at = i < dense ? shards + i : rows + i - dense;
    if (all.size() <= at) all.resize(at + 1);
    all[at] = own[i];
  }
}

std::vector<Version> PartitionedClient::versionsOf(size_t daemon, const std::vector<Version>& all) const {
  const auto [shards, rows] = versionsAt(daemon);
  const JoinInfo& info = infoOf(daemons_[daemon]);
  std::vector<Version> own;
  for (size_t i = 0; i < info.shardCount + info.rowShardCount; i++) {
    const size_t at = i < info.shardCount ? shards + i : rows + i - info.shardCount;
    own.push_back(at < all.size() ? all[at] : Version{});
  }
  return own;
}

Status PartitionedClient::checkLength(const char* what, size_t elements) const {
  if (elements == elements_) return {};
  return {ErrorCode::invalidArgument,
          fmt::format("{} has {} elements; the model's layout has {}", what, elements, elements_)};
}

Status PartitionedClient::checkRows(const RowBatch* rows) const {
  if (rows == nullptr || rows->daemons() == daemons_.size()) return {};
  return {ErrorCode::invalidArgument,
          fmt::format("rows that are divided among {} daemons; the batch is to be of this client's "
                      "makeRowBatch(), for {}",
                      rows->daemons(), daemons_.size())};
}

RowBatch PartitionedClient::makeRowBatch() const {
  const uint32_t shards = daemons_.front().client->makeRowBatch().shards();
  return RowBatch(tables_, shards, nullptr, static_cast<uint32_t>(daemons_.size()));
}

Pending<PullInfo> PartitionedClient::pull(std::span<float> destination, RowBatch* rows) {
  const bool rowsAlone = destination.empty() && rows != nullptr;
  if (Status fits = checkLength("the destination of a pull", destination.size()); !fits.ok() && !rowsAlone) {
    return failedCall<PullInfo>(fits.error());
  }
  if (Status fits = checkRows(rows); !fits.ok()) return failedCall<PullInfo>(fits.error());
  std::vector<Pending<PullInfo>> parts;
  RowsOfDaemons own;
  for (uint32_t i = 0; i < daemons_.size(); i++) {
    const ModelPartition& partition = daemons_[i].partition;
    if (rows) own.push_back(std::make_unique<RowBatch>(rows->ofDaemon(i)));
    const auto part =
        destination.empty() ? destination : destination.subspan(partition.begin, partition.count);
    parts.push_back(daemons_[i].client->pull(part, rows ? own.back().get() : nullptr));
  }
  return Pending<PullInfo>(
      std::make_unique<PullOfAll>(*this, std::move(parts), std::make_shared<RowsOfDaemons>(std::move(own))));
}

Pending<PushInfo> PartitionedClient::push(Step step, std::span<const float> gradient, uint32_t samples,
                                          const std::vector<Version>& basis, const RowBatch* rows) {
  const std::unique_ptr<PartialPush> push = beginPush(step, gradient, samples, basis, rows);
  push->ready(0, gradient.size());
  return push->finish();
}

std::unique_ptr<PartialPush> PartitionedClient::beginPush(Step step, std::span<const float> gradient,
                                                          uint32_t samples, const std::vector<Version>& basis,
                                                          const RowBatch* rows) {
  if (Status fits = checkLength("a gradient", gradient.size()); !fits.ok()) {
    return std::make_unique<WrongPush>(fits.error());
  }
  if (Status fits = checkRows(rows); !fits.ok()) return std::make_unique<WrongPush>(fits.error());
  std::vector<std::unique_ptr<PartialPush>> parts;
  RowsOfDaemons own;
  for (uint32_t i = 0; i < daemons_.size(); i++) {
    const ModelPartition& partition = daemons_[i].partition;
    if (rows) own.push_back(std::make_unique<RowBatch>(rows->ofDaemon(i)));
    parts.push_back(daemons_[i].client->beginPush(step, gradient.subspan(partition.begin, partition.count),
                                                  samples, versionsOf(i, basis),
                                                  rows ? own.back().get() : nullptr));
  }
  return std::make_unique<PartialPushToAll>(*this, std::move(parts), std::move(own));
}

Result<DealtSamples> PartitionedClient::takeSamples(const SamplesRequest& request) {
  Result<DealtSamples> dealt = lead().takeSamples(request);
  if (!dealt.ok()) return of(daemons_.front().name, dealt.error());
  if (dealt->mixed) {
    return Error{ErrorCode::invalidArgument,
                 "batches whose sizes the daemon chooses do not go with several daemons and groups of which "
                 "some are in rounds and others are not"};
  }
  // The lead tells of its partition, and all groups are alike.
  if (dealt->unweighted.empty() && dealt->unweightedTables.empty()) return dealt;
  dealt->unweighted.clear();
  if (elements_ > 0) dealt->unweighted.push_back({0, elements_});
  dealt->unweightedTables.clear();
  for (uint32_t i = 0; i < tables_.size(); i++) dealt->unweightedTables.push_back(i);
  return dealt;
}

void PartitionedClient::giveUpOthers(const Error& error) {
  if (!isLost(error)) return;
  for (const Daemon& daemon : daemons_) daemon.client->interrupt();
}

Status PartitionedClient::leave() {
  Status all;
  for (size_t i = daemons_.size(); i-- > 0;) {
    const Status left = daemons_[i].client->leave();
    if (!left.ok() && all.ok()) all = of(daemons_[i].name, left.error());
  }
  return all;
}

void PartitionedClient::interrupt() {
  for (const Daemon& daemon : daemons_) daemon.client->interrupt();
}

uint64_t PartitionedClient::bytesPulled() const {
  uint64_t bytes = 0;
  for (const Daemon& daemon : daemons_) bytes += daemon.client->bytesPulled();
  return bytes;
}

uint64_t PartitionedClient::bytesPushed() const {
  uint64_t bytes = 0;
  for (const Daemon& daemon : daemons_) bytes += daemon.client->bytesPushed();
  return bytes;
}

}  // namespace psd

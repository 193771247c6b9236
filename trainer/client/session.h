#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "trainer/client/api/client.h"
#include "trainer/client/handshake.h"
#include "trainer/client/links.h"
#include "trainer/client/notices.h"
#include "trainer/client/takeover_watch.h"

namespace psd {

/// The agreement between a client and its daemon, and the steps to reach it: connects, joins or observes, and
/// attaches further connections. Each call is one attempt; the caller decides on another. Used with the
/// client's lock held, which it leaves while it waits.
class Session {
 public:
  /// Identity of this trainer, and its model.
  struct Trainer {
    Membership membership;
    ModelSpec model;
    std::function<ConstArenaValues()> initialValues;
  };

  /// The arguments outlive this object.
  Session(const ClientOptions& options, Links& links, Notices& notices, ClientLock& lock);

  /// One attempt at each server, all within `timeout`; replaces the first link's channel when a server
  /// answers.
  Status connect(std::chrono::milliseconds timeout);
  /// Joins over the current channel, and sends initial values if this trainer is the initializer. `held`:
  /// samples assigned to this trainer and not yet pushed. `timeout`: for the daemon's answer to the join; 0:
  /// none.
  Status join(const std::map<Step, HeldSamples>& held, std::chrono::milliseconds timeout);
  /// Observes the model of becomeReader() over the current channel. `timeout`: for the daemon's answer; 0:
  /// none.
  Status observe(std::chrono::milliseconds timeout);

  /// Before join(): the trainer was joined at other daemons, from which the model has moved here.
  void setMovedFrom(MovedFrom before) { movedFrom_ = std::move(before); }
  /// Random number of the process of the last join()'s daemon.
  uint64_t daemon() const { return joined_.daemon; }
  /// Pending move of the model, as announced by the daemon of the last join().
  PendingMove& pendingMove() const { return *pendingMove_; }
  /// Where the model has moved, as reported by the daemon of the last observe(); null: no reader.
  const std::shared_ptr<const MoveNotification>& moveNotification() const { return moveNotification_; }
  /// From now on join() is for this trainer.
  void become(Trainer trainer) { trainer_ = std::move(trainer); }
  /// From now on this trainer initializes with these values, if it must.
  void setInitialValues(std::function<ConstArenaValues()> values) {
    trainer_->initialValues = std::move(values);
  }
  bool hasTrainer() const { return trainer_.has_value(); }
  /// From now on observe() reads this model; empty: the one that the daemon has, and from then on that one.
  void becomeReader(const ModelSpec& model) { observed_ = model; }
  bool reads() const { return observed_.has_value(); }
  /// Random; drawn once in a trainer's life.
  uint64_t incarnation() const { return incarnation_; }
  /// Of the connected daemon.
  const DaemonIdentity& identity() const { return identity_; }
  const std::string& server() const { return server_; }
  /// The rules of the daemon of the last join() or observe().
  const ModelRules& rules() const { return rules_; }
  /// Of the last join() or observe().
  const JoinInfo& info() const { return info_; }
  /// A push of that step has started: if this trainer must initialize the model, its values include that
  /// step.
  void recordStep(Step step) { step_ = step; }
  /// Some push has touched rows of the tables: from now on a daemon can lose them.
  void recordRows() { rowsSeen_ = true; }
  /// Whether the last join() resumed the previous session.
  bool resumed() const { return joined_.resumed; }
  /// Makes connect() start with the server after the one that did not serve.
  void startWithNextServer() { first_ = (connected_ + 1) % std::max<size_t>(options_.servers.size(), 1); }
  /// See Client::makeRowBatch().
  RowBatch makeRowBatch() const { return RowBatch(tables_, rowShards_, rowMemory_); }
  /// Checks that `values` have the length of the model's layout and are aligned for sending; the error names
  /// them as `what`.
  Status checkValues(const char* what, ConstArenaValues values) const;
  /// Checks that the model has this fragment; ErrorCode::invalidArgument.
  Status checkFragment(uint32_t fragment) const;
  /// Checks that hyperparameters, if any are given, cover the model; ErrorCode::invalidArgument.
  Status checkHyperparameters(const ModelHyperparameters* given) const;

 private:
  Status connectOnce(const std::string& server, std::chrono::milliseconds timeout);
  Result<JoinAnswer> requestJoin(const JoinRequest& request, std::chrono::milliseconds timeout);
  /// Whether the trainer has used rows at another daemon than the one that it has just joined. `lastDaemon`:
  /// of the previous join; 0: this is the first.
  bool usedRowsElsewhere(uint64_t lastDaemon) const;
  /// Waits until the model has values, or sends its initial values.
  Status awaitModel();
  /// Attaches further connections, each within `timeout`, or where that is 0 within the connect timeout.
  Status attachOthers(std::chrono::milliseconds timeout);
  Status attach(Link& link, const SessionTerms& terms, std::chrono::milliseconds timeout);
  JoinInfo describe();
  /// Watches the other servers for a takeover from the joined daemon.
  void watchOthers();

  const ClientOptions& options_;
  Links& links_;
  Notices& notices_;
  ClientLock& lock_;
  const uint64_t incarnation_;
  std::optional<Trainer> trainer_;
  std::optional<ModelSpec> observed_;
  std::string server_;
  DaemonIdentity identity_;       // of the connected daemon
  std::atomic<size_t> first_{0};  // index of the server to try first
  size_t connected_ = 0;          // index of server_
  std::vector<std::unique_ptr<TakeoverWatch>> watches_;
  const std::shared_ptr<PendingMove> pendingMove_ = std::make_shared<PendingMove>();
  std::shared_ptr<const MoveNotification> moveNotification_;
  MovedFrom movedFrom_;
  JoinAnswer joined_;
  JoinInfo info_;
  ModelRules rules_;
  Step step_;                         // newest that was started
  std::optional<uint64_t> elements_;  // of the model's layout, once it is known
  std::vector<TableSpec> tables_;     // of the model
  bool rowsSeen_ = false;             // some push has touched rows
  uint32_t rowShards_ = 1;            // into which the daemon cuts most tables
  const std::shared_ptr<RowMemory> rowMemory_ = std::make_shared<RowMemory>();  // of its batches
};

}  // namespace psd

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

#include "trainer/client/client.h"
#include "trainer/client/handshake.h"
#include "trainer/client/links.h"
#include "trainer/client/notices.h"
#include "trainer/client/takeover_watch.h"

namespace psd {

/// What a client has agreed on with its daemon, and how it comes to that: connects, joins or observes, and
/// brings further connections along. Each call is one attempt; whether to make another is the caller's.
/// Owned by the client's thread.
class Session {
 public:
  /// Who this trainer is.
  struct Trainer {
    Membership membership;
    ModelSpec model;
    std::function<std::span<const float>()> initialValues;
  };

  /// The others outlive this object.
  Session(const ClientOptions& options, Links& links, Notices& notices);

  /// One attempt at each server, all within `timeout`; the first link's channel is replaced when one of them
  /// answers.
  Status connect(std::chrono::milliseconds timeout);
  /// Joins over the channel as it is, and brings values if asked to. `held`: samples dealt to this trainer
  /// and not yet pushed. The daemon answers the join within `timeout`, or it fails; 0: however long it takes.
  Status join(const std::map<Step, HeldSamples>& held, std::chrono::milliseconds timeout);
  /// Reads the model of the daemon over the channel as it is, as becomeReader() said. The daemon answers
  /// within `timeout`, or it fails; 0: however long it takes.
  Status observe(std::chrono::milliseconds timeout);

  /// Before join(): the trainer was in at other daemons, from which the model has moved here.
  void comeFrom(MovedFrom before) { before_ = std::move(before); }
  /// Which process the daemon of the last join() is.
  uint64_t daemon() const { return joined_.daemon; }
  /// What the daemon of the last join() tells of moves of the model.
  MoveAsked& moveAsked() const { return *moveAsked_; }
  /// Where the model has moved, as the daemon of the last observe() tells; null: there is none.
  const MoveHeard* moveHeard() const { return moveHeard_.get(); }
  /// From now on join() is for this trainer.
  void become(Trainer trainer) { trainer_ = std::move(trainer); }
  /// From now on it brings these values, where it must.
  void bringWith(std::function<std::span<const float>()> values) {
    trainer_->initialValues = std::move(values);
  }
  bool hasTrainer() const { return trainer_.has_value(); }
  /// From now on observe() reads this model; an empty one: whichever the daemon has, and then that one.
  void becomeReader(const ModelSpec& model) { observed_ = model; }
  bool reads() const { return observed_.has_value(); }
  /// Drawn once in a trainer's life.
  uint64_t incarnation() const { return incarnation_; }
  /// Of the daemon that was connected to.
  const DaemonIdentity& identity() const { return identity_; }
  const std::string& server() const { return server_; }
  /// What the daemon of the last join() or observe() goes by.
  const ModelRules& rules() const { return rules_; }
  /// Of the last join() or observe().
  const JoinInfo& info() const { return info_; }
  /// A push of that step has begun: its parameters are those of that step, should it have to bring them.
  void noteStep(Step step) { step_ = step; }
  /// Some push has touched rows of the tables: from now on they can be lost.
  void noteRows() { rowsSeen_ = true; }
  /// Whether the last join() found the session of the one before.
  bool resumed() const { return joined_.resumed; }
  /// Of several servers: which one connect() begins with next, after one that did not serve.
  void tryAnother() { first_ = (connected_ + 1) % std::max<size_t>(options_.servers.size(), 1); }
  /// See Client::makeRowBatch().
  RowBatch makeRowBatch() const { return RowBatch(tables_, rowShards_, rowMemory_); }
  /// Whether `values` are as long as the model's layout and lie where they can be sent from and brought
  /// again; the error names `what` they are.
  Status checkValues(const char* what, std::span<const float> values) const;
  /// Whether the model has this fragment; ErrorCode::invalidArgument.
  Status checkFragment(uint32_t fragment) const;

 private:
  Status connectOnce(const std::string& server, std::chrono::milliseconds timeout);
  Result<JoinAnswer> askToJoin(const JoinRequest& request, std::chrono::milliseconds timeout);
  /// Whether the trainer has seen rows at another daemon than the one that it has just joined. `lastDaemon`:
  /// of the join before; 0: it is the first.
  bool hadRowsElsewhere(uint64_t lastDaemon) const;
  /// Waits for the model, or brings it its initial values.
  Status awaitModel();
  /// Further connections, each to be there within `timeout`, or where that is 0 within that of connecting.
  Status attachOthers(std::chrono::milliseconds timeout);
  Status attach(Link& link, const SessionTerms& terms, std::chrono::milliseconds timeout);
  JoinInfo describe();
  /// Lets the other servers tell when one of them has taken over from the one that was joined.
  void watchOthers();

  const ClientOptions& options_;
  Links& links_;
  Notices& notices_;
  const uint64_t incarnation_;
  std::optional<Trainer> trainer_;
  std::optional<ModelSpec> observed_;
  std::string server_;
  DaemonIdentity identity_;       // of the daemon that was connected to
  std::atomic<size_t> first_{0};  // of the servers: the one to begin with
  size_t connected_ = 0;          // of the servers: the one of server_
  std::vector<std::unique_ptr<TakeoverWatch>> watches_;
  const std::shared_ptr<MoveAsked> moveAsked_ = std::make_shared<MoveAsked>();
  std::shared_ptr<const MoveHeard> moveHeard_;
  MovedFrom before_;
  JoinAnswer joined_;
  JoinInfo info_;
  ModelRules rules_;
  Step step_;                         // newest that was begun
  std::optional<uint64_t> elements_;  // of the model's layout, once it is known
  std::vector<TableSpec> tables_;     // of the model
  bool rowsSeen_ = false;             // some push has touched rows
  uint32_t rowShards_ = 1;            // into which the daemon cuts a table, as a rule
  const std::shared_ptr<RowMemory> rowMemory_ = std::make_shared<RowMemory>();  // of its batches
};

}  // namespace psd

#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/types/move_notification.h"
#include "trainer/client/api/client.h"
#include "trainer/client/handshake.h"
#include "trainer/client/liveness_watch.h"
#include "trainer/client/movable_client.h"
#include "trainer/client/pending_move.h"
#include "trainer/client/report_queue.h"
#include "trainer/client/transport/answer_budget.h"
#include "trainer/client/transport/daemon_connection.h"
#include "trainer/client/transport/encoded_pushes.h"
#include "trainer/client/transport/growing_window.h"
#include "trainer/client/transport/shared_copy.h"
#include "trainer/client/transport/slice_queue.h"
#include "trainer/client/transport/transports.h"

namespace psd {

/// What a joined trainer does first.
enum class StartRole { go, initializeModel };

/// The I/O side of a Client: one connection and the calls on it. Every method is called on the thread of its
/// event loop, where its promises resolve. Connection errors are those of DaemonConnection.
///
/// A trainer may have several channels: the first joins, the others attach; each carries the slices of some
/// shards.
class Channel {
 public:
  /// The parameters correspond to ClientOptions.
  Channel(kj::AsyncIoContext& io, wire::Socket socket, std::string server, const ClientOptions& options);
  ~Channel() { connection_.tearDown(); }

  kj::Promise<Result<DaemonIdentity>> logIn() { return psd::logIn(connection_, program_, token_); }
  /// After logIn(): ends the connection when no bytes arrive for `silence`.
  void watchLiveness(std::chrono::milliseconds silence);
  kj::Promise<Result<JoinAnswer>> join(const JoinRequest& request, const ModelSpec& model);
  /// Instead of join(), for a further connection of the same trainer.
  kj::Promise<Status> attach(const SessionTerms& terms);
  /// See observeAs(). Returns the daemon's model.
  kj::Promise<Result<ModelSpec>> observe(const ModelSpec& model, const std::string& pullCodec);
  /// After joining: pulls and pushes cover the shards that connection `number` of `links` carries. Continues
  /// with `encoder`, that of the previous connection, if it fits; may be null. Returns the encoder in use;
  /// null where gradients travel as float32.
  std::shared_ptr<EncodedPushes> carry(uint32_t number, uint32_t links,
                                       const std::shared_ptr<EncodedPushes>& encoder);
  /// See DaemonConnection::whenEnded().
  void onFailure(std::function<void(const Error&)> callback) { connection_.whenEnded(std::move(callback)); }

  kj::Promise<Result<StartRole>> awaitModel();
  kj::Promise<Result<PushInfo>> initializeModel(ConstArenaValues values, Step step);
  /// `onDevice`: whether the destination is in device memory, as in PushRequest::onDevice. `fragment`: the
  /// only one to pull; empty: all.
  kj::Promise<Result<PullInfo>> pull(ArenaValues destination, bool onDevice,
                                     std::optional<uint32_t> fragment);
  /// Helps with a pull from the daemon's memory until it is done.
  kj::Promise<Result<PullInfo>> pullShared(std::shared_ptr<SharedCopy> copy) {
    return copyOnLoop(std::move(copy), connection_);
  }
  /// Fills in the values of the rows that this connection carries.
  kj::Promise<Result<PullInfo>> pullRows(const std::shared_ptr<RowBatch>& rows);
  /// Starts a push whose slices pushReady() sends; resolves when all are answered. Several pushes may be in
  /// progress; the slices of each are sent before those of the next.
  kj::Promise<Result<PushInfo>> beginPush(PushRequest request);
  /// Slices of the push of `step` are final, given by their index among the slices that this connection
  /// carries; slices of other fragments than the push's are ignored.
  void pushReady(Step step, std::vector<size_t> slices, std::optional<uint32_t> fragment);
  /// The gradients of the rows of the push of `step` are final. `rowsOnly`: the push has rows only.
  void rowsReady(Step step, bool rowsOnly = false);
  /// Sends nothing more of the push of `step`.
  void giveUpPush(Step step) { pushes_.giveUp(step); }
  /// See SliceTransport::conclude(); for use with several connections.
  void concludePush(Step step, const std::vector<ShardId>& dropped) { transports_.conclude(step, dropped); }
  kj::Promise<Result<AssignedSamples>> takeSamples(const SamplesRequest& samples);
  /// For the first fragment, or for `fragment`.
  kj::Promise<Result<RoundDue>> roundDue(Version version, uint32_t fragment = 0);
  /// See Client::progress().
  kj::Promise<Result<MachineProgress>> progress(bool settled);
  kj::Promise<Result<FormedGroup>> formAveragingGroup(uint64_t after, const AveragingMember& where);
  /// From now on the session reports moves of the model to other daemons to `pendingMove`.
  void setPendingMove(std::shared_ptr<PendingMove> pendingMove);
  /// After logIn(): requests a notification from the daemon when the model has moved away; sent once.
  std::shared_ptr<const MoveNotification> watchMove();
  /// Quiesces the trainer until the end of the move; see the schema's interface Trainer. Returns the daemons
  /// that serve the model afterwards; empty: this one does.
  kj::Promise<Result<DaemonAddresses>> quiesce(uint64_t move, const std::string& cannot);
  /// See Client::report().
  void report(Step step, std::span<const NamedValue> values);
  /// See Client::waiters().
  kj::Promise<Result<std::vector<Rank>>> waiters();
  /// See Client::setBuffers() and buffers().
  kj::Promise<Status> setBuffers(std::shared_ptr<const std::vector<std::byte>> file);
  kj::Promise<Result<std::vector<std::byte>>> buffers();
  kj::Promise<Result<PingInfo>> ping(uint64_t calls, uint32_t outstanding);
  kj::Promise<Status> leave();
  /// Ends the connection: all calls in progress fail, with `why` unless a more specific error is known.
  /// Resolves when no memory of the caller is referenced any more.
  kj::Promise<void> fail(const Error& why);
  /// Says goodbye, and ends the connection when that is answered or after two seconds.
  kj::Promise<void> leaveAndFail(const Error& why);

  /// For the calls of operator_calls.h.
  DaemonConnection& connection() { return connection_; }
  const SessionTerms& terms() const { return terms_; }
  /// Whether pulls transfer differences, see LocalSteps::deltas.
  bool pullsDeltas() const { return connection_.canPush() && !terms_.localSteps.deltas.empty(); }
  const Transports& transports() const { return transports_; }

 private:
  /// Adopts the result of joining or observing, and opens the transports. `sliceElements`: see JoinRequest.
  kj::Promise<Status> begin(Admission in, uint64_t sliceElements);
  /// Sets the limits on what is in flight, from the slices and the daemon's terms.
  void sizeWindows();
  /// Size at which slices of tensors are cut.
  uint64_t chooseSliceElements(const TransportOffer& offer) const;
  /// Monitors the session of this connection: its lease and the daemon's notices.
  void watchSession();
  void watchNotice(uint64_t move = 0);
  /// Number of parts of the gradient.
  uint32_t partsOf(const PushRequest& request) const;
  /// The hyperparameters of a push by shard, then by row shard; null: it brings none.
  std::shared_ptr<const std::vector<Hyperparameters>> hyperparametersOf(const PushRequest& request) const;
  /// The slices of the arena that this connection carries, of one fragment or of all.
  std::vector<Slice> carriedOf(std::optional<uint32_t> fragment) const;
  /// Limit on unanswered slices of these; grows with `grown`.
  SliceQueue::Window inFlight(const std::vector<Slice>& slices, uint32_t limit,
                              const GrowingWindow& grown) const;
  /// The slices of rows that this connection carries, at least one of each row shard.
  std::vector<RowSlice> carriedRows(const RowBatch* rows) const;
  kj::Promise<Status> sendRows(const PushRequest& request, const RowSlice& slice, PushInfo& info);
  kj::Promise<void> sendReport(Step step, std::span<const NamedValue> values);
  kj::Promise<Status> initializeSlice(const Slice& slice, ConstArenaValues values);
  /// Makes `left` calls one after another.
  kj::Promise<void> pingRepeatedly(uint64_t left, std::vector<double>& seconds);

  const uint64_t chunkBytes_, deviceChunkBytes_, ringChunkBytes_;
  const uint32_t window_;
  const bool windowIsGiven_, windowGrows_;
  GrowingWindow pulling_{window_, window_}, pushing_{window_, window_};  // for messages
  AnswerBudget answers_;                                                 // to pulls
  const std::string program_, token_;
  DaemonConnection connection_;
  Transports transports_;
  std::unique_ptr<LivenessWatch> livenessWatch_;
  std::shared_ptr<PendingMove> pendingMove_;            // null: not requested
  std::shared_ptr<MoveNotification> moveNotification_;  // null: not requested
  kj::Promise<void> moved_ = kj::READY_NOW;
  kj::Promise<void> notice_ = kj::READY_NOW;
  kj::Promise<void> nextNotice_ = kj::READY_NOW;  // schedules the next notice()
  kj::Promise<void> ending_ = kj::READY_NOW;      // ends a connection whose daemon stopped answering
  kj::Promise<void> lost_ = kj::READY_NOW;        // detects the end of a connection on which no call waits
  SessionTerms terms_;
  uint64_t sliceElements_ = 0;  // size at which slices are cut
  std::vector<Slice> carried_;  // of terms_.slices
  uint32_t links_ = 1;          // connections that share the slices, including this one
  uint32_t number_ = 0;         // index of this one among them
  uint64_t lastPull_ = 0;
  SliceQueue pushes_;
  ReportQueue reports_{
      [this](Step step, std::span<const NamedValue> values) { return sendReport(step, values); }};
};

}  // namespace psd

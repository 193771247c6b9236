#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trainer/client/client.h"
#include "trainer/client/handshake.h"
#include "trainer/client/movable_client.h"
#include "trainer/client/move_asked.h"
#include "trainer/client/move_heard.h"
#include "trainer/client/report_queue.h"
#include "trainer/client/silence_watch.h"
#include "trainer/client/transport/answer_room.h"
#include "trainer/client/transport/daemon_connection.h"
#include "trainer/client/transport/encoded_pushes.h"
#include "trainer/client/transport/growing_window.h"
#include "trainer/client/transport/shared_copy.h"
#include "trainer/client/transport/slice_queue.h"
#include "trainer/client/transport/transports.h"

namespace psd {

/// What a trainer does once it is in.
enum class StartRole { go, bringValues };

/// The side of a Client that does input and output: one connection and the calls on it. Every method is
/// called on its event loop's thread, and so do the promises resolve. Errors of the connection are as
/// DaemonConnection has it.
///
/// A trainer may have several: the first joins, the others attach; each carries the slices of some shards.
class Channel {
 public:
  /// See ClientOptions of what they are named after.
  Channel(kj::AsyncIoContext& io, wire::Socket socket, std::string server, const ClientOptions& options);
  ~Channel() { connection_.tearDown(); }

  kj::Promise<Result<DaemonIdentity>> logIn() { return psd::logIn(connection_, token_); }
  /// From now on, after logIn(), ends the connection when for `silence` nothing has come.
  void watchSilence(std::chrono::milliseconds silence);
  kj::Promise<Result<JoinAnswer>> join(const JoinRequest& request, const ModelSpec& model);
  /// Instead of join(), for a further connection of the same trainer.
  kj::Promise<Status> attach(const SessionTerms& terms);
  kj::Promise<Result<ModelSpec>> observe(const ModelSpec& model);
  /// Pulls and pushes are of the shards that connection `number` of `links` carries; after joining. Goes on
  /// with the `encoder` of the connection that did so before, if it fits; null: none. Gives the one that it
  /// has now; null where gradients travel as float32.
  std::shared_ptr<EncodedPushes> carry(uint32_t number, uint32_t links,
                                       const std::shared_ptr<EncodedPushes>& encoder);
  /// See DaemonConnection::whenEnded().
  void whenFailed(std::function<void(const Error&)> tell) { connection_.whenEnded(std::move(tell)); }

  kj::Promise<Result<StartRole>> awaitModel();
  kj::Promise<Result<PushInfo>> bringValues(std::span<const float> values, Step step);
  /// `onDevice`: where the destination is, as PushRequest::onDevice. `fragment`: the only one to pull;
  /// nothing: all.
  kj::Promise<Result<PullInfo>> pull(std::span<float> destination, bool onDevice,
                                     std::optional<uint32_t> fragment);
  /// Helps with a pull out of the daemon's memory until it is done.
  kj::Promise<Result<PullInfo>> pullShared(std::shared_ptr<SharedCopy> copy) {
    return copyOnLoop(std::move(copy), connection_);
  }
  /// Fills in the values of the rows that this connection carries.
  kj::Promise<Result<PullInfo>> pullRows(const std::shared_ptr<RowBatch>& rows);
  /// Begins a push, of which pushReady() sends the slices; resolves when all are answered. Pushes may be
  /// under way together; each one's slices are sent before those of the next.
  kj::Promise<Result<PushInfo>> beginPush(PushRequest request);
  /// Slices of the push of `step` are final, by their index among those that this connection carries; those
  /// of other fragments than the push's are passed over.
  void pushReady(Step step, std::vector<size_t> slices, std::optional<uint32_t> fragment);
  /// The gradients of the rows of the push of `step` are final.
  /// `alone`: the push is of rows alone.
  void rowsReady(Step step, bool alone = false);
  /// Sends nothing more of the push of `step`.
  void giveUpPush(Step step) { pushes_.giveUp(step); }
  /// See SliceTransport::conclude(); where there are several connections.
  void concludePush(Step step, const std::vector<ShardId>& dropped) { transports_.conclude(step, dropped); }
  kj::Promise<Result<DealtSamples>> takeSamples(const SamplesRequest& samples);
  /// Of the first fragment, or of this one.
  kj::Promise<Result<RoundDue>> roundDue(Version version, uint32_t fragment = 0);
  /// See Client::progress().
  kj::Promise<Result<MachineProgress>> progress(bool settled);
  kj::Promise<Result<FormedGroup>> formGroup(uint64_t after, const AveragingMember& where);
  /// The session tells `asked` from now on of moves of the model to other daemons.
  void noteMoves(std::shared_ptr<MoveAsked> asked);
  /// Asks the daemon, once, after logIn(), to tell when the model has moved from there.
  std::shared_ptr<const MoveHeard> hearOfMove();
  /// Waits for the end of the move; see Trainer.stepAside in the schema. Gives the daemons that serve the
  /// model then; none: this one does.
  kj::Promise<Result<DaemonPlaces>> stepAside(uint64_t move, const std::string& cannot);
  /// See Client::report().
  void report(Step step, std::span<const NamedValue> values);
  /// See Client::waiters().
  kj::Promise<Result<std::vector<Rank>>> waiters();
  kj::Promise<Result<PingInfo>> ping(uint64_t calls, uint32_t outstanding);
  kj::Promise<Status> leave();
  /// Ends the connection: whatever is under way fails, with `why` where nothing better is known. Resolves
  /// when no memory of the caller is referenced any more.
  kj::Promise<void> fail(const Error& why);
  /// Says goodbye, and ends the connection when that is answered, or has not been in two seconds.
  kj::Promise<void> leaveAndFail(const Error& why);

  const SessionTerms& terms() const { return terms_; }
  /// Whether pulls are of differences, as LocalSteps::deltas has it.
  bool pullsDeltas() const { return connection_.canPush() && !terms_.localSteps.deltas.empty(); }
  const Transports& transports() const { return transports_; }

 private:
  /// Has what joining or observing came to, and opens what values can travel by.
  /// `sliceElements`: see JoinRequest.
  kj::Promise<Status> begin(Admission in, uint64_t sliceElements);
  /// Bounds what is in flight by the slices and by what the daemon told.
  void sizeWindows();
  /// That slices of tensors are cut at.
  uint64_t chooseSliceElements(const TransportOffer& offer) const;
  /// Watches over the session that the connection has now.
  void watchSession();
  void watchNotice(uint64_t move = 0);
  /// How many parts the gradient has.
  uint32_t partsOf(const PushRequest& request) const;
  /// The slices of the arena that this connection carries, of one fragment or of all.
  std::vector<Slice> carriedOf(std::optional<uint32_t> fragment) const;
  /// How many of them may be unanswered at once, also as `grown` says.
  SliceQueue::Window inFlight(const std::vector<Slice>& slices, const SliceTransport& transport,
                              const GrowingWindow& grown) const;
  /// The slices of rows that this connection carries, one at least of each row shard.
  std::vector<RowSlice> carriedRows(const RowBatch* rows) const;
  kj::Promise<Status> sendRows(const PushRequest& request, const RowSlice& slice, PushInfo& info);
  kj::Promise<void> sendReport(Step step, std::span<const NamedValue> values);
  kj::Promise<Status> initializeSlice(const Slice& slice, std::span<const float> values);
  /// Makes `left` calls one after the other.
  kj::Promise<void> pingOnAndOn(uint64_t left, std::vector<double>& seconds);

  const uint64_t chunkBytes_, deviceChunkBytes_;
  const uint32_t window_;
  const bool windowGrows_;
  GrowingWindow pulling_{window_, window_}, pushing_{window_, window_};  // of messages
  AnswerRoom answers_;                                                   // of pulls
  const std::string token_;
  DaemonConnection connection_;
  Transports transports_;
  std::unique_ptr<SilenceWatch> silence_;
  std::shared_ptr<MoveAsked> moveAsked_;  // null: nobody asks
  std::shared_ptr<MoveHeard> moveHeard_;  // null: the daemon was not asked
  kj::Promise<void> moved_ = kj::READY_NOW;
  kj::Promise<void> notice_ = kj::READY_NOW;
  kj::Promise<void> nextNotice_ = kj::READY_NOW;  // turns to the next
  kj::Promise<void> ending_ = kj::READY_NOW;      // a connection that a silent daemon made useless
  kj::Promise<void> lost_ = kj::READY_NOW;        // marks the end of a connection that no call waits on
  SessionTerms terms_;
  uint64_t sliceElements_ = 0;  // that slices are cut at
  std::vector<Slice> carried_;  // of terms_.slices
  uint32_t links_ = 1;          // how many connections share the slices, this one included
  uint32_t number_ = 0;         // of this one among them
  uint64_t lastPull_ = 0;
  SliceQueue pushes_;
  ReportQueue reports_{
      [this](Step step, std::span<const NamedValue> values) { return sendReport(step, values); }};
};

}  // namespace psd

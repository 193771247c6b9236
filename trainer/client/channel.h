#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include <capnp/rpc-twoparty.h>
#include <kj/async-io.h>

#include "common/os/socket.h"
#include "common/types/samples.h"
#include "common/wire/message_stream.h"
#include "schema/psd.capnp.h"
#include "trainer/client/client.h"
#include "trainer/client/device_rings.h"
#include "trainer/client/encoded_pushes.h"
#include "trainer/client/host_slice.h"
#include "trainer/client/push_queue.h"
#include "trainer/client/push_ring.h"
#include "trainer/client/shared_copy.h"
#include "trainer/client/shared_model.h"
#include "trainer/client/slices.h"

namespace psd {

/// What a trainer does once it is in.
enum class StartRole { go, bringValues };

/// True for an error of a daemon that is away or silent, or has given this trainer up, and not for what the
/// daemon answered itself. What became of what was sent is open then, so that it may be sent again.
inline bool isLost(const Error& error) {
  return error.code == ErrorCode::unavailable || error.code == ErrorCode::sessionEnded;
}

/// How gradients and parameters are to travel; empty: as the daemon says.
struct CodecWish {
  std::string push, pull;
};

/// How a trainer asks to be let in.
struct JoinOrder {
  Membership membership;
  uint64_t incarnation = 0;  ///< drawn once in a trainer's life
  uint64_t lastDaemon = 0;   ///< JoinAnswer::daemon of the last join; 0: none
  CodecWish codecs;
  std::vector<HeldSamples> held;  ///< dealt to it by this daemon or one before
};

struct JoinAnswer {
  Rank rank;
  uint32_t worldSize = 0;
  bool mustInitialize = false;
  bool resumed = false;  ///< the session from before goes on
  uint64_t daemon = 0;   ///< which process the daemon is
};

/// What joining came to, as further connections of the same trainer need it.
struct SessionTerms {
  Rank rank;
  uint64_t incarnation = 0;
  uint32_t attachment = 0;  ///< of the session, see the schema
  uint64_t leaseMs = 0;
  ShardPlan plan;
  std::vector<Slice> slices;               ///< of the whole model
  std::shared_ptr<const Codec> codec;      ///< of pushes; null: float32
  std::shared_ptr<const Codec> pullCodec;  ///< of pulls; null: float32
};

/// One gradient to push. `gradient` is the whole arena's.
struct PushOrder {
  Step step;
  std::span<const float> gradient;
  uint32_t samples = 0;
  std::vector<Version> basis;  ///< per shard; 0 where it is too short
  bool onDevice = false;       ///< where `gradient` is: ClientOptions::cudaDevice, or host memory
  /// The shards that dropped their part, put here by the one that is told so of the connections that carry
  /// the push. To be read once all of these have their answers.
  std::shared_ptr<std::vector<ShardId>> dropped;
};

/// By shard, encoded slices of which no answer told yet whether the shard drops the gradient.
using UndecidedSlices = std::map<ShardId, std::vector<Slice>>;

/// A push under way.
struct PushProgress {
  PushInfo info;
  UndecidedSlices undecided;
};

/// The side of a Client that does input and output: one connection and the calls on it. Every method is
/// called on its event loop's thread, and so do the promises resolve. Whatever the RPC library throws
/// is turned into an Error; by the time such an Error is out, the connection is torn down and no
/// memory of the caller is referenced any more.
///
/// A trainer may have several: the first joins, the others attach; each carries the slices of some shards.
class Channel {
 public:
  /// `cudaDevice`: see ClientOptions.
  Channel(kj::AsyncIoContext& io, OwnFd fd, std::string server, Transport transport,
          std::chrono::microseconds spin, int cudaDevice);
  ~Channel();

  /// Agrees on the protocol. Gives the daemon's version.
  kj::Promise<Result<std::string>> hello();
  /// From now on, after hello(), asks the daemon for signs of life in the background, whatever this program
  /// does; ends the connection when for `silence` nothing has come. Renews the lease of who has joined.
  void watchSilence(std::chrono::milliseconds silence);
  kj::Promise<Result<JoinAnswer>> join(const JoinOrder& order, const ModelSpec& model, uint64_t chunkBytes,
                                       uint32_t window);
  /// Instead of join(), for a further connection of the same trainer.
  kj::Promise<Status> attach(const SessionTerms& terms);
  /// Pulls and pushes are of the shards that connection `number` of `links` carries; after joining. Goes on
  /// with the `encoder` of the connection that did so before, if it fits; null: none.
  void carry(uint32_t number, uint32_t links, const std::shared_ptr<EncodedPushes>& encoder);
  /// Calls `tell`, and nobody else any more, once, on the loop's thread, when the connection has failed; at
  /// once where it has. Null: nobody.
  void whenFailed(std::function<void(const Error&)> tell);
  kj::Promise<Result<ModelSpec>> observe(const ModelSpec& model, uint64_t chunkBytes);
  kj::Promise<Result<StartRole>> awaitModel();
  kj::Promise<Result<PushInfo>> bringValues(std::span<const float> values, uint32_t window);
  /// `onDevice`: where the destination is, as PushOrder::onDevice.
  kj::Promise<Result<PullInfo>> pull(std::span<float> destination, uint32_t window, bool onDevice);
  /// Helps with a pull out of the daemon's memory until it is done.
  kj::Promise<Result<PullInfo>> pullShared(std::shared_ptr<SharedCopy> copy);
  /// Begins a push, of which pushReady() sends the slices; resolves when all are answered. Pushes may be
  /// under way together; each one's slices are sent before those of the next.
  kj::Promise<Result<PushInfo>> beginPush(const PushOrder& order, uint32_t window);
  /// Slices of the push of `step` are final, by their index among those that this connection carries.
  void pushReady(Step step, const std::vector<size_t>& slices) { pushes_.ready(step, slices); }
  /// Sends nothing more of the push of `step`.
  void giveUpPush(Step step) { pushes_.giveUp(step); }
  /// All connections have their answers to the push of `step`: the shards `dropped` dropped it, besides those
  /// that said so in their answers.
  void concludePush(Step step, const std::vector<ShardId>& dropped);
  kj::Promise<Result<DealtSamples>> takeSamples(const SamplesWish& wish);
  kj::Promise<Status> leave();
  /// Ends the connection: whatever is under way fails, with `why` where nothing better is known. Resolves
  /// when no memory of the caller is referenced any more.
  kj::Promise<void> fail(const Error& why);
  /// Says goodbye, and ends the connection when that is answered, or has not been in two seconds.
  kj::Promise<void> leaveAndFail(const Error& why);
  kj::Promise<Result<PingInfo>> ping(uint64_t calls, uint32_t outstanding);

  const SessionTerms& terms() const { return terms_; }
  /// The daemon's parameters in this process; null where values travel in messages.
  const std::shared_ptr<const SharedModel>& sharedModel() const { return shared_; }
  /// Whether pushes go through memory shared with the daemon.
  bool hasRing() const { return ring_ != nullptr; }
  /// Whether values of ClientOptions::cudaDevice go through memory of the daemon's devices.
  bool hasDeviceRings() const { return deviceRings_ != nullptr; }
  const std::string& policy() const { return policy_; }
  const std::string& device() const { return device_; }
  const LocalSteps& localSteps() const { return localSteps_; }
  /// Null where gradients travel as float32.
  const std::shared_ptr<EncodedPushes>& encoder() const { return encoder_; }
  std::string codec() const { return terms_.codec ? terms_.codec->spec() : "none"; }
  std::string pullCodec() const { return terms_.pullCodec && !shared_ ? terms_.pullCodec->spec() : "none"; }

 private:
  using Rpc = capnp::RpcSystem<capnp::rpc::twoparty::VatId>;
  using PushResponse = capnp::Response<schema::PushResult>;
  using PlaceKey = std::tuple<uint64_t, uint32_t, uint64_t>;  // pull, shard, offset

  /// Makes `left` calls one after the other.
  kj::Promise<void> pingOnAndOn(uint64_t left, std::vector<double>& seconds);
  Status readAccess(schema::ModelAccess::Reader access, uint64_t chunkBytes, const ModelSpec& model);
  /// Of a shard's slices the oldest version counts: updates may land between them.
  static void noteVersion(PullInfo& info, const Slice& slice, uint64_t version);
  kj::Promise<Status> pullSlice(uint64_t pull, const Slice& slice, std::span<float> into, PullInfo& info);
  kj::Promise<Status> initializeSlice(const Slice& slice, std::span<const float> values);
  kj::ArrayPtr<capnp::word> placeFor(capnp::rpc::Message::Reader envelope, size_t words);
  /// Takes on what the daemon said about codecs; after readAccess().
  Status agreeOn(schema::JoinResult::Joined::Reader joined);
  /// Takes `session` as the trainer's from now on, and watches it.
  void hold(schema::Trainer::Client session);
  Status decodeSlice(std::span<const std::byte> bytes, std::span<float> into) const;
  kj::Promise<Status> pushEncoded(const PushOrder& order, const Slice& slice, std::span<const float> values,
                                  PushProgress& push);
  /// After readAccess(): maps the daemon's parameters as far as the transport asks for it and it can be done.
  kj::Promise<Status> share(schema::ModelAccess::Reader access);
  Status openShared(kj::Maybe<int> fd, const SharedModel::Places& places);
  kj::Promise<Status> copyPieces(std::shared_ptr<SharedCopy> copy);
  /// After share(): has the daemon make a ring of one place for each slice of the window, as far as the
  /// transport asks for it and it can be done.
  kj::Promise<Status> openRing(uint64_t bytesMax, uint32_t window);
  /// What openRing() comes to when there is no ring, which `why` says.
  Status noRing(const Error& why) const;
  /// `push` outlives the promise.
  kj::Promise<Status> pushSlice(const PushOrder& order, const Slice& slice, PushProgress& push);
  kj::Promise<PushResponse> sendInMessage(const PushOrder& order, const Slice& slice,
                                          const SliceValues& values);
  kj::Promise<PushResponse> sendThroughRing(const PushOrder& order, const Slice& slice,
                                            const SliceValues& values);
  /// How a ring of at most so many bytes is divided: places for the largest slice, `window` at most.
  struct PlaceSizes {
    uint64_t bytes = 0;
    uint32_t places = 0;
  };
  PlaceSizes placesFor(uint64_t bytesMax, uint32_t window) const;
  /// Opens what values can go through beside messages. `access` outlives the promise.
  kj::Promise<Status> openRings(schema::ModelAccess::Reader access, uint32_t window);
  /// Before share() and openRing(): has the daemon make a ring on each of its devices that have shards, as
  /// far as there is a CUDA device here, the transport asks for it and it can be done.
  kj::Promise<Status> openDeviceRings(schema::ModelAccess::Reader access, uint32_t window);
  kj::Promise<Status> openDeviceRings(std::unique_ptr<ClientDeviceRings> rings, std::vector<uint32_t> missing,
                                      const PlaceSizes& sizes);
  kj::Promise<Status> pushThroughDevice(const PushOrder& order, const Slice& slice, PushProgress& push);
  kj::Promise<Status> pullThroughDevice(uint64_t pull, const Slice& slice, std::span<float> into,
                                        PullInfo& info);
  /// pullSlice() into a device's memory, where there is no ring.
  kj::Promise<Status> pullByWayOfHost(uint64_t pull, const Slice& slice, std::span<float> into,
                                      PullInfo& info);
  /// The slice's part of a gradient, in host memory.
  Result<SliceValues> valuesOf(const PushOrder& order, const Slice& slice);
  /// The copier for cudaDevice_, made when it is first needed.
  Result<DeviceCopier*> copier();
  void connectionLost();
  void watchNotice();
  /// Once every `interval`, asks for a sign of life and ends the connection of a daemon that gives none.
  kj::Promise<void> beat(kj::Duration interval);
  void askForLife();
  /// fail(), not from within the promise that finds out, which it drops.
  void failSoon(const Error& why);
  /// Has all calls from now on fail with `why`; the first reason stands.
  void end(Error why);
  /// The typed form of what the library threw; tears the connection down first.
  kj::Promise<Error> broken(kj::Exception&& exception);
  template <class T>
  kj::Promise<Result<T>> guarded(kj::Promise<Result<T>> call);
  void tearDown();

  wire::Spinner spinner_;
  kj::Timer& timer_;
  const std::string server_;
  const Transport transport_;
  const int cudaDevice_;
  kj::Own<kj::AsyncIoStream> socket_;
  kj::Own<wire::MessageStream> stream_;
  kj::Own<capnp::TwoPartyVatNetwork> network_;
  kj::Maybe<Rpc> rpc_;
  kj::Maybe<schema::Login::Client> login_;
  kj::Maybe<schema::Reading::Client> reading_;
  kj::Maybe<schema::Training::Client> training_;
  kj::Maybe<schema::Reader::Client> reader_;
  kj::Maybe<schema::Trainer::Client> trainer_;
  kj::Promise<void> notice_ = kj::READY_NOW;
  kj::Promise<void> keptAlive_ = kj::READY_NOW;
  uint64_t heardBytes_ = 0;                       // bytes that had come by the last beat
  uint64_t quietBeats_ = 0;                       // beats in a row between which nothing came
  kj::Own<kj::TaskSet> asked_;                    // signs of life that have not come; null: not watched yet
  kj::Promise<void> ending_ = kj::READY_NOW;      // a connection that a silent daemon made useless
  kj::Promise<void> lost_ = kj::READY_NOW;        // marks the end of a connection that no call waits on
  std::optional<Error> ended_;                    // why nothing can be called any more
  std::function<void(const Error&)> tellFailed_;  // null once called
  SessionTerms terms_;
  std::vector<Slice> carried_;  // of terms_.slices
  uint32_t links_ = 1;          // how many connections share terms_.slices, this one included
  std::shared_ptr<const SharedModel> shared_;
  std::string policy_;
  LocalSteps localSteps_;
  std::string device_;
  std::shared_ptr<EncodedPushes> encoder_;     // null where gradients travel as float32
  std::map<Step, UndecidedSlices> undecided_;  // of encoded pushes that are answered here
  uint64_t lastPull_ = 0;
  std::map<PlaceKey, std::span<float>> places_;  // destinations of the slices in flight
  std::unique_ptr<ClientPushRing> ring_;         // null where gradients travel in messages
  std::unique_ptr<DeviceCopier> copier_;
  std::unique_ptr<ClientDeviceRings> deviceRings_;  // null where a device's values go by way of host memory
  PushQueue pushes_;
};

template <class T>
kj::Promise<Result<T>> Channel::guarded(kj::Promise<Result<T>> call) {
  return call.catch_([this](kj::Exception&& exception) -> kj::Promise<Result<T>> {
    return broken(kj::mv(exception)).then([](Error error) -> Result<T> { return error; });
  });
}

}  // namespace psd

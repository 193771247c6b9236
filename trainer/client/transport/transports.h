#pragma once

#include <memory>
#include <string>
#include <vector>

#include "trainer/client/api/client.h"
#include "trainer/client/transport/daemon_connection.h"
#include "trainer/client/transport/encoded_pushes.h"
#include "trainer/client/transport/host_staged_transport.h"
#include "trainer/client/transport/message_rows.h"
#include "trainer/client/transport/message_transport.h"
#include "trainer/client/transport/ring_rows.h"
#include "trainer/client/transport/session_terms.h"
#include "trainer/client/transport/shared_model.h"
#include "trainer/client/transport/sixteen_bit_slices.h"
#include "trainer/client/transport/slice_transport.h"

namespace psd {

/// What a daemon offers besides messages; see ModelAccess in schema/psd.capnp.
struct TransportOffer {
  kj::Maybe<schema::SharedMemory::Client> model;
  SharedModel::Places places;  ///< with `model`
  bool appliesSlices = false;  ///< with `model`: it does not gather gradients
  std::string notShared;       ///< why `model` is null; human-readable
  uint64_t ringBytesMax = 0;
  std::vector<uint32_t> deviceOfShard;  ///< empty: no rings on devices
};

/// The transports of one connection, and the choice between them. Belongs to its event loop.
class Transports {
 public:
  /// Starts with messages only. `wanted` and `cudaDevice`: see ClientOptions.
  Transports(DaemonConnection& connection, Transport wanted, int cudaDevice);

  /// Whether values should travel in memory of the daemon's CUDA devices; open() falls back to other
  /// transports if that is not available.
  bool shouldUseDeviceRings(const TransportOffer& offer, const SessionTerms& terms) const;
  /// Whether gradients should be cut for a ring in host memory to a daemon that applies slices as they
  /// arrive. Decided before open(); if the daemon then refuses the ring, such slices go in messages.
  bool shouldUseLargeSlices(const TransportOffer& offer, const SessionTerms& terms) const {
    return wanted_ != Transport::rpc && connection_.canPush() && !terms.codec && offer.appliesSlices;
  }
  /// After observing or joining: opens the transports that the daemon offers and the client wants. Fails if
  /// the client requires shared memory and there is none. `terms` outlive the promise.
  /// `ringWindow`: slices of gradients in a ring in host memory; `window`: of other slices in flight.
  kj::Promise<Status> open(TransportOffer offer, const SessionTerms& terms, uint32_t window,
                           uint32_t ringWindow);
  /// From now on values in host memory use these codecs, see CodecTransport.
  void useCodecs(std::shared_ptr<EncodedPushes> encoder, std::shared_ptr<const Codec> pullCodec);

  /// See MessageTransport.
  void usePushesOfNonZeros() { messages_.usePushesOfNonZeros(); }
  /// From now on pulls to host memory transfer differences in this codec, see DeltaTransport.
  void useDeltas(const Codec& codec);

  /// The transports of pushes and of pulls.
  struct Choice {
    SliceTransport* push;
    SliceTransport* pull;
  };
  /// The way of the values of one pull or push: `slices`, of float32, and that of 16-bit dtypes.
  class Way {
   public:
    Way(const Choice& slices, SixteenBitSlices& sixteenBit, const Choice& float32Host, DeviceCopier* copier)
        : slices_(slices), sixteenBit_(sixteenBit), float32Host_(float32Host), copier_(copier) {}

    /// As of SliceTransport, for the slice's elements of the whole arena.
    kj::Promise<SlicePushed> push(const PushRequest& push, const Slice& slice) const;
    kj::Promise<Result<SlicePulled>> pull(uint64_t pull, const Slice& slice, ArenaValues destination) const;
    /// The transports of float32 slices.
    const Choice& slices() const { return slices_; }
    uint32_t pushWindow() const { return slices_.push->window(); }
    uint32_t pullWindow() const { return slices_.pull->window(); }

   private:
    Choice slices_;
    SixteenBitSlices& sixteenBit_;
    Choice float32Host_;    // of their float32 values
    DeviceCopier* copier_;  // null: the values are in host memory
  };
  /// For values in host memory, or in the client's CUDA device; an error if that device cannot be used.
  /// `sixteenBit`: whether some have a 16-bit dtype.
  Result<Way> choose(bool onDevice, bool sixteenBit);

  /// The daemon's parameters in this process; null if they must be pulled.
  const std::shared_ptr<const SharedModel>& sharedModel() const { return shared_; }
  /// From now on rows in messages use these codecs, see MessageRows.
  void useRowCodecs(const std::shared_ptr<const Codec>& pushes, const std::shared_ptr<const Codec>& pulls) {
    messageRows_.useCodecs(pushes, pulls);
  }
  /// The transport of rows of embedding tables.
  RowTransport& rows() { return ringRows_ ? static_cast<RowTransport&>(*ringRows_) : messageRows_; }
  /// Memory for batches of rows; null where rows go in messages.
  std::shared_ptr<RingBlocks> rowBlocks() const { return ringRows_ ? ringRows_->blocks() : nullptr; }
  const char* rowName() const { return ringRows_ ? ringRows_->name() : messageRows_.name(); }

  /// Human-readable names of the transports of pulls and of pushes.
  std::string pullName() const { return rings_ ? rings_->name() : shared_ ? "shm" : host_.pull->name(); }
  std::string pushName() const { return rings_ ? rings_->name() : host_.push->name(); }

  /// See SliceTransport.
  void conclude(Step step, const std::vector<ShardId>& dropped);
  void close(const Error& why);

 private:
  kj::Promise<Status> openDeviceRings(const TransportOffer& offer, const SessionTerms& terms,
                                      uint32_t window);
  kj::Promise<Status> openHostRing(const TransportOffer& offer, const SessionTerms& terms, uint32_t window,
                                   uint32_t ringWindow);
  /// Requests a ring from the daemon that is divided like this.
  kj::Promise<Status> openHostRing(const RingSizes& dense, const RowRingSizes& rows);
  kj::Promise<Status> openSharedModel(TransportOffer& offer, const SessionTerms& terms);
  /// Outcome of a transport that could not be opened: OK if messages may replace it, else an error.
  Status fallBack(const Error& why) const;
  /// Creates hostStaged_ on first use.
  Status stageOnHost();
  /// Makes this the transport of values in host memory, for what it supports.
  void prefer(std::unique_ptr<SliceTransport> transport);

  DaemonConnection& connection_;
  const Transport wanted_;
  const int cudaDevice_;
  MessageTransport messages_;
  MessageRows messageRows_;
  std::unique_ptr<RingRows> ringRows_;  // null: rows go in messages
  std::vector<std::unique_ptr<SliceTransport>> others_;
  SixteenBitSlices sixteenBit_;
  Choice host_;
  std::unique_ptr<SliceTransport> rings_;            // of devices; null where the daemon shares none
  std::unique_ptr<HostStagedTransport> hostStaged_;  // created on first use
  std::shared_ptr<const SharedModel> shared_;        // null: values are pulled slice by slice
};

}  // namespace psd

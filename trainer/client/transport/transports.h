#pragma once

#include <memory>
#include <string>
#include <vector>

#include "trainer/client/client.h"
#include "trainer/client/transport/daemon_connection.h"
#include "trainer/client/transport/encoded_pushes.h"
#include "trainer/client/transport/message_rows.h"
#include "trainer/client/transport/message_transport.h"
#include "trainer/client/transport/ring_rows.h"
#include "trainer/client/transport/session_terms.h"
#include "trainer/client/transport/shared_model.h"
#include "trainer/client/transport/slice_transport.h"

namespace psd {

/// What a daemon offers beside messages, as schema/psd.capnp's ModelAccess says.
struct TransportOffer {
  kj::Maybe<schema::SharedMemory::Client> model;
  SharedModel::Places places;  ///< with `model`
  std::string notShared;       ///< without
  uint64_t ringBytesMax = 0;
  std::vector<uint32_t> deviceOfShard;  ///< empty: no rings on devices
};

/// What there is to choose from: the transports of one connection. Belongs to its event loop.
class Transports {
 public:
  /// Messages alone. `wanted` and `cudaDevice`: see ClientOptions.
  Transports(DaemonConnection& connection, Transport wanted, int cudaDevice);

  /// Whether values are to travel in memory of the daemon's CUDA devices; open() goes on without where that
  /// cannot be had.
  bool shouldGoByDevices(const TransportOffer& offer, const SessionTerms& terms) const;
  /// Once there is something to pull, or also to push: opens what the daemon offers, the client wants and can
  /// be had. Fails where the client must have shared memory and there is none. `terms` outlive the promise.
  kj::Promise<Status> open(TransportOffer offer, const SessionTerms& terms, uint32_t window);
  /// From now on values of host memory go through codecs, as CodecTransport has it.
  void useCodecs(std::shared_ptr<EncodedPushes> encoder, std::shared_ptr<const Codec> pullCodec);

  /// From now on pulls to host memory are of differences in this codec, as DeltaTransport has it.
  void useDeltas(const Codec& codec);

  /// Where pushes and pulls go.
  struct Choice {
    SliceTransport* push;
    SliceTransport* pull;
  };
  /// For values in host memory, or in the client's CUDA device: an error where that cannot be used.
  Result<Choice> choose(bool onDevice);

  /// The daemon's parameters in this process; null where they are to be pulled.
  const std::shared_ptr<const SharedModel>& sharedModel() const { return shared_; }
  /// From now on rows in messages go through these codecs, as MessageRows has it.
  void useRowCodecs(const std::shared_ptr<const Codec>& pushes, const std::shared_ptr<const Codec>& pulls) {
    messageRows_.useCodecs(pushes, pulls);
  }
  /// Where rows of embedding tables go.
  RowTransport& rows() { return ringRows_ ? static_cast<RowTransport&>(*ringRows_) : messageRows_; }
  /// For batches of rows to lie in; null where rows go in messages.
  std::shared_ptr<RingBlocks> rowBlocks() const { return ringRows_ ? ringRows_->blocks() : nullptr; }
  const char* rowName() const { return ringRows_ ? ringRows_->name() : messageRows_.name(); }

  /// What people call the way of pulls and of pushes.
  std::string pullName() const { return rings_ ? rings_->name() : shared_ ? "shm" : host_.pull->name(); }
  std::string pushName() const { return rings_ ? rings_->name() : host_.push->name(); }

  /// See SliceTransport.
  void conclude(Step step, const std::vector<ShardId>& dropped);
  void close(const Error& why);

 private:
  kj::Promise<Status> openDeviceRings(const TransportOffer& offer, const SessionTerms& terms,
                                      uint32_t window);
  kj::Promise<Status> openHostRing(const TransportOffer& offer, const SessionTerms& terms, uint32_t window);
  /// Has the daemon make a ring that is divided so.
  kj::Promise<Status> openHostRing(const RingSizes& dense, const RowRingSizes& rows);
  kj::Promise<Status> openSharedModel(TransportOffer& offer, const SessionTerms& terms);
  /// What opening comes to that failed for this reason: messages do as well, if they may.
  Status doWithout(const Error& why) const;
  /// Has values of host memory go by this one, as far as it can.
  void prefer(std::unique_ptr<SliceTransport> transport);

  DaemonConnection& connection_;
  const Transport wanted_;
  const int cudaDevice_;
  MessageTransport messages_;
  MessageRows messageRows_;
  std::unique_ptr<RingRows> ringRows_;  // null: rows go in messages
  std::vector<std::unique_ptr<SliceTransport>> others_;
  Choice host_;
  std::unique_ptr<SliceTransport> rings_;      // of devices; null where the daemon shares none
  std::unique_ptr<SliceTransport> byHost_;     // made when it is first needed
  std::shared_ptr<const SharedModel> shared_;  // null: values come slice by slice
};

}  // namespace psd

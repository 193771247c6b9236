#pragma once

#include <string>
#include <utility>
#include <vector>

#include "common/wire/convert.h"
#include "server/membership/sample_plan.h"
#include "test/support/local_server.h"
#include "test/support/raw_peer.h"

namespace psd::testing {

inline constexpr uint64_t kElements = 4000;   // two shards of 2000
inline constexpr uint64_t kSliceMost = 1024;  // elements: limits.slice_bytes / 4
inline constexpr std::pair<uint64_t, uint64_t> kSlicesOfShard[] = {{0, 1008}, {1008, 992}};  // offset, count

inline ModelSpec model() { return {"test", {{"w", DType::f32, {kElements}}}}; }

inline capnp::Data::Reader dataOf(const std::vector<float>& values) {
  return {reinterpret_cast<const kj::byte*>(values.data()), values.size() * sizeof(float)};
}

inline Status statusFrom(const schema::Error::Reader& error) { return wire::readError(error); }

/// Parameters of a join: incarnation, previous daemon, requested codec, model, and samples held.
struct RawLife {
  uint64_t incarnation = 0, daemon = 0;
  std::string codec = {};
  ModelSpec model = testing::model();
  std::vector<HeldSamples> held = {};
  bool anyRank = false;
};

inline kj::Promise<capnp::Response<schema::JoinResult>> startJoin(RawPeer& peer, uint32_t rank,
                                                                  uint32_t worldSize, const RawLife& life) {
  auto request = peer.training().joinRequest();
  request.setRank(rank);
  request.setWorldSize(worldSize);
  request.setIncarnation(life.incarnation);
  request.setDaemon(life.daemon);
  request.setAnyRank(life.anyRank);
  request.setCodec(life.codec.c_str());
  wire::writeModel(life.model, request.initModel());
  auto held = request.initHeld(static_cast<unsigned>(life.held.size()));
  for (unsigned i = 0; i < life.held.size(); i++) {
    held[i].setStep(life.held[i].step.value);
    held[i].setEpoch(life.held[i].range.epoch);
    held[i].setBegin(life.held[i].range.begin);
    held[i].setCount(static_cast<uint32_t>(life.held[i].range.count));
  }
  return request.send().dropPipeline();
}

inline capnp::Response<schema::JoinResult> join(RawPeer& peer, uint32_t rank, uint32_t worldSize,
                                                const RawLife& life) {
  return peer.wait(startJoin(peer, rank, worldSize, life));
}

inline Status tryToJoin(kj::AsyncIoContext& io, const LocalServer& server, uint32_t rank, uint32_t worldSize,
                        const RawLife& life) {
  RawPeer peer(io, server.address());
  auto answer = join(peer, rank, worldSize, life);
  return answer.isError() ? statusFrom(answer.getError()) : Status();
}

/// A raw trainer that joins and makes arbitrary calls. Owned by one thread.
class RawTrainer {
 public:
  RawTrainer(kj::AsyncIoContext& io, const LocalServer& server, uint32_t rank, uint32_t worldSize,
             const RawLife& life = {})
      : RawTrainer(io, server.address(), rank, worldSize, life) {}
  RawTrainer(kj::AsyncIoContext& io, const std::string& server, uint32_t rank, uint32_t worldSize,
             const RawLife& life = {})
      : peer_(io, server) {
    auto answer = join(peer_, rank, worldSize, life);
    REQUIRE(answer.isJoined());
    auto joined = answer.getJoined();
    mustInitialize_ = joined.getMustInitialize();
    resumed_ = joined.getResumed();
    daemon_ = joined.getDaemon();
    for (const auto shard : joined.getAccess().getShards()) elements_.push_back(shard.getCount());
    session_ = kj::heap<schema::Trainer::Client>(joined.getSession());
  }

  bool mustInitialize() const { return mustInitialize_; }
  bool resumed() const { return resumed_; }
  uint64_t daemon() const { return daemon_; }
  RawPeer& peer() { return peer_; }
  schema::Trainer::Client& session() { return *session_; }

  Status initialize(uint32_t shard, uint64_t offset, const std::vector<float>& values) {
    auto request = session_->initializeRequest();
    request.setShard(shard);
    request.setOffset(offset);
    request.setValues(dataOf(values));
    return wire::readStatus(peer_.wait(request.send().dropPipeline()).getStatus());
  }
  Status initialized() {
    auto request = session_->initializedRequest();
    return wire::readStatus(peer_.wait(request.send().dropPipeline()).getStatus());
  }
  /// Sends zeros for the whole model.
  void initializeZeros() {
    for (uint32_t shard : {0u, 1u}) {
      for (const auto& [offset, count] : kSlicesOfShard) {
        PSD_REQUIRE_OK(initialize(shard, offset, std::vector<float>(count)));
      }
    }
    PSD_REQUIRE_OK(initialized());
  }

  struct Slice {
    uint64_t step = 1;
    uint32_t shard = 0;
    uint64_t offset = 0, basis = 0;
    std::string codec = {};  // with the bytes of `count` values
    uint32_t count = 0;
    uint32_t parts = 0;  // 0: all shards of the model
    uint64_t total = 0;  // 0: the size of the shard in the model
    const Hyperparameters* hyperparameters = nullptr;
  };
  void fill(schema::PushHead::Builder head, const Slice& slice) const {
    head.setStep(slice.step);
    head.setShard(slice.shard);
    head.setOffset(slice.offset);
    head.setBasis(slice.basis);
    head.setSamples(1);
    head.setParts(slice.parts == 0 ? static_cast<uint32_t>(elements_.size()) : slice.parts);
    head.setTotal(slice.total == 0 && slice.shard < elements_.size() ? elements_[slice.shard] : slice.total);
    if (slice.hyperparameters) wire::writeHyperparameters(*slice.hyperparameters, head.initHyperparameters());
  }
  Status push(Slice slice, const std::vector<float>& gradient) { return push(slice, dataOf(gradient)); }
  Status push(Slice slice, capnp::Data::Reader gradient) {
    auto answer = answerTo(slice, gradient);
    return answer.isError() ? statusFrom(answer.getError()) : Status();
  }
  /// The outcome of a gradient in the answer to its last slice, and the number of shards whose parts were
  /// dropped according to it.
  struct Pushed {
    schema::PushOutcome outcome = schema::PushOutcome::RECEIVED;
    unsigned dropped = 0;
    bool operator==(const Pushed&) const = default;
  };
  /// Pushes a gradient of `value` for each element of a shard, in the slices that it takes.
  Pushed pushShard(uint32_t shard, float value) {
    Pushed pushed;
    for (const auto& [offset, count] : kSlicesOfShard) {
      auto answer = answerTo({.shard = shard, .offset = offset}, dataOf(std::vector<float>(count, value)));
      REQUIRE(answer.isAccepted());
      pushed = {answer.getAccepted().getOutcome(), answer.getDropped().size()};
    }
    return pushed;
  }
  capnp::Response<schema::PushResult> answerTo(const Slice& slice, capnp::Data::Reader gradient) {
    return peer_.wait(startPush(slice, gradient).dropPipeline());
  }
  capnp::RemotePromise<schema::PushResult> startPush(const Slice& slice, capnp::Data::Reader gradient) {
    auto request = session_->pushRequest();
    fill(request.initHead(), slice);
    request.setGradient(gradient);
    request.setCodec(slice.codec.c_str());
    request.setCount(slice.count);
    return request.send();
  }

  capnp::RemotePromise<schema::PullResult> startPull(uint64_t pull, uint32_t shard, uint64_t offset,
                                                     uint64_t count) {
    auto request = session_->pullRequest(capnp::MessageSize{8, 0});  // keeps thousands of them small
    request.setPull(pull);
    request.setShard(shard);
    request.setOffset(offset);
    request.setCount(count);
    return request.send();
  }
  Status pull(uint32_t shard, uint64_t offset, uint64_t count) {
    auto answer = peer_.wait(startPull(1, shard, offset, count).dropPipeline());
    return answer.isError() ? statusFrom(answer.getError()) : Status();
  }
  /// Under bounded_staleness with a bound of 0: makes a step, and requests that many slices, which wait for
  /// the other trainers' steps.
  std::vector<capnp::RemotePromise<schema::PullResult>> pullAhead(uint64_t slices) {
    for (const uint32_t shard : {0u, 1u}) pushShard(shard, 1);
    std::vector<capnp::RemotePromise<schema::PullResult>> asked;
    for (uint64_t i = 0; i < slices; i++) asked.push_back(startPull(1, 0, 0, 16));
    return asked;
  }
  /// A whole shard's weights.
  std::vector<float> values(uint32_t shard) {
    std::vector<float> values;
    for (const auto& [offset, count] : kSlicesOfShard) {
      auto answer = peer_.wait(startPull(1, shard, offset, count).dropPipeline());
      REQUIRE(answer.isSlice());
      const auto slice = wire::floatsIn(answer.getSlice().getValues());
      PSD_REQUIRE_OK(slice);
      values.insert(values.end(), slice->begin(), slice->end());
    }
    return values;
  }
  /// The daemon's assignment for a step.
  SampleRange takeSamples(uint64_t step, uint32_t count, uint64_t samples, uint64_t epochs) {
    auto request = session_->takeSamplesRequest();
    request.setStep(step);
    request.setCount(count);
    request.setSamples(samples);
    request.setEpochs(epochs);
    auto answer = peer_.wait(request.send().dropPipeline());
    REQUIRE(answer.isAssigned());
    return {answer.getAssigned().getEpoch(), answer.getAssigned().getBegin(),
            answer.getAssigned().getCount()};
  }
  /// Waits until another trainer has initialized the model.
  Status awaitModel() {
    auto answer = peer_.wait(session_->awaitModelRequest().send().dropPipeline());
    return answer.isError() ? statusFrom(answer.getError()) : Status();
  }
  Status keepAlive() {
    return wire::readStatus(peer_.wait(session_->keepAliveRequest().send().dropPipeline()).getStatus());
  }
  Status leave() {
    return wire::readStatus(peer_.wait(session_->leaveRequest().send().dropPipeline()).getStatus());
  }

 private:
  RawPeer peer_;
  bool mustInitialize_ = false, resumed_ = false;
  uint64_t daemon_ = 0;
  std::vector<uint64_t> elements_;  // by shard
  kj::Own<schema::Trainer::Client> session_;
};

}  // namespace psd::testing

#include "trainer/client/channel.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <utility>

#include <kj/async-unix.h>
#include <kj/debug.h>

#include "common/text/text.h"
#include "common/types/model_layout.h"
#include "common/wire/convert.h"
#include "trainer/client/cleared.h"
#include "trainer/client/window.h"

namespace psd {
namespace {

// The daemon's slices are far smaller; a larger message is not from a psd daemon.
constexpr uint64_t kMessageBytesMax = 64u << 20;
constexpr kj::uint kDescriptorsPerMessage = 1;  // the memory of the parameters, or of the ring
constexpr size_t kPooledBytesMax = 16u << 20;
constexpr Version kUnread{UINT64_MAX};

double secondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

Channel::Channel(kj::AsyncIoContext& io, OwnFd fd, std::string server, Transport transport,
                 std::chrono::microseconds spin, int cudaDevice)
    : spinner_(io.unixEventPort, spin),
      timer_(io.provider->getTimer()),
      server_(std::move(server)),
      transport_(transport),
      cudaDevice_(cudaDevice) {
  wire::Socket socket = wire::wrapSocket(*io.lowLevelProvider, fd.release());
  socket_ = kj::mv(socket.stream);
  wire::MessageStreamOptions options;
  options.descriptors = socket.descriptors;
  options.spinner = &spinner_;
  options.takeDescriptors = transport != Transport::rpc;
  options.messageBytesMax = kMessageBytesMax;
  options.placer = [this](capnp::rpc::Message::Reader envelope, size_t words) {
    return placeFor(envelope, words);
  };
  stream_ = kj::heap<wire::MessageStream>(*socket_, wire::BufferPool::make(kPooledBytesMax),
                                          io.provider->getTimer(), std::move(options));
  network_ = kj::heap<capnp::TwoPartyVatNetwork>(*stream_, kDescriptorsPerMessage,
                                                 capnp::rpc::twoparty::Side::CLIENT);
  rpc_ = capnp::makeRpcClient(*network_);
  capnp::MallocMessageBuilder vat;
  auto id = vat.initRoot<capnp::rpc::twoparty::VatId>();
  id.setSide(capnp::rpc::twoparty::Side::SERVER);
  login_ = KJ_ASSERT_NONNULL(rpc_).bootstrap(id).castAs<schema::Login>();
}

Channel::~Channel() { tearDown(); }

void Channel::tearDown() {
  if (deviceRings_) deviceRings_->unmap();
  notice_ = kj::READY_NOW;
  keptAlive_ = kj::READY_NOW;
  asked_ = nullptr;
  lost_ = kj::READY_NOW;
  trainer_ = nullptr;
  reader_ = nullptr;
  reading_ = nullptr;
  training_ = nullptr;
  login_ = nullptr;
  rpc_ = nullptr;
  network_ = nullptr;
  stream_ = nullptr;
  socket_ = nullptr;
}

void Channel::end(Error why) {
  if (ended_) return;
  ended_ = std::move(why);
  if (tellFailed_) std::exchange(tellFailed_, nullptr)(*ended_);
}

void Channel::whenFailed(std::function<void(const Error&)> tell) {
  if (ended_ && tell) return tell(*ended_);
  tellFailed_ = std::move(tell);
}

kj::Promise<Error> Channel::broken(kj::Exception&& exception) {
  const std::string reason(wire::textIn(exception.getDescription()));
  bool lost = exception.getType() == kj::Exception::Type::DISCONNECTED;
  end({ErrorCode::unavailable,
       "the connection to " + server_ + " broke" + (lost ? "" : ": " + printable(reason))});
  // Off the stack of the call that failed, and before its caller may free what the call references.
  return kj::evalLater([this] {
    tearDown();
    return *ended_;
  });
}

kj::ArrayPtr<capnp::word> Channel::placeFor(capnp::rpc::Message::Reader envelope, size_t words) {
  if (!envelope.isReturn() || !envelope.getReturn().isResults()) return nullptr;
  auto result = envelope.getReturn().getResults().getContent().getAs<schema::PullResult>();
  if (!result.isSlice()) return nullptr;
  auto slice = result.getSlice();
  auto place = places_.find({slice.getPull(), slice.getShard(), slice.getOffset()});
  if (place == places_.end() || place->second.size_bytes() != words * sizeof(capnp::word)) return nullptr;
  return kj::arrayPtr(reinterpret_cast<capnp::word*>(place->second.data()), words);
}

kj::Promise<Result<std::string>> Channel::hello() {
  if (ended_) return Result<std::string>(*ended_);
  auto request = KJ_ASSERT_NONNULL(login_).loginRequest();
  request.setProtocolVersion(wire::kProtocolVersion);
  request.setPeer("psd-trainer " PSD_VERSION);
  return guarded<std::string>(
      request.send().then([this](capnp::Response<schema::LoginResult> answer) -> Result<std::string> {
        const Status status = wire::readStatus(answer.getStatus());
        if (!status.ok()) {
          return Error{status.error().code, server_ + ": " + cleared(status.error()).message};
        }
        if (answer.getProtocolVersion() != wire::kProtocolVersion) {
          return Error{ErrorCode::protocolMismatch, server_ + ": the daemon speaks protocol version " +
                                                        std::to_string(answer.getProtocolVersion()) +
                                                        ", this program version " +
                                                        std::to_string(wire::kProtocolVersion)};
        }
        if (!answer.hasReading()) {
          return Error{ErrorCode::invalidArgument, server_ + " does not let this program read the model"};
        }
        reading_ = answer.getReading();
        if (answer.hasTraining()) training_ = answer.getTraining();
        return printable(wire::textIn(answer.getServerVersion()));
      }));
}

Status Channel::readAccess(schema::ModelAccess::Reader access, uint64_t chunkBytes, const ModelSpec& model) {
  PSD_ASSIGN_OR_RETURN(terms_.plan, wire::readPlan(access.getShards()));
  const ShardPlan& plan = terms_.plan;
  uint64_t expected = ModelLayout(model).totalElements();
  if (plan.totalElements() != expected) {
    return {ErrorCode::protocolMismatch, "the daemon's shards hold " + std::to_string(plan.totalElements()) +
                                             " elements; this model's layout has " +
                                             std::to_string(expected)};
  }
  terms_.slices = cutIntoSlices(plan, std::min(chunkBytes / sizeof(float), access.getSliceElementsMax()));
  carried_ = terms_.slices;
  policy_ = printable(wire::textIn(access.getPolicy()));
  device_ = printable(wire::textIn(access.getDevice()));
  localSteps_ = {};
  if (access.hasLocalSteps()) {
    const auto local = access.getLocalSteps();
    localSteps_ = {local.getPeriod(), local.getRate(), local.getAlpha()};
    if (localSteps_.period == 0 || !std::isfinite(localSteps_.rate) || !std::isfinite(localSteps_.alpha)) {
      return {ErrorCode::protocolMismatch, "the daemon's local steps make no sense"};
    }
  }
  return {};
}

kj::Promise<Result<ModelSpec>> Channel::observe(const ModelSpec& model, uint64_t chunkBytes) {
  if (ended_) return Result<ModelSpec>(*ended_);
  auto request = KJ_ASSERT_NONNULL(reading_).observeRequest();
  wire::writeModel(model, request.initModel());
  return guarded<ModelSpec>(request.send().then(
      [this, chunkBytes](capnp::Response<schema::ObserveResult> answer) -> kj::Promise<Result<ModelSpec>> {
        if (answer.isError()) return Result<ModelSpec>(cleared(wire::readError(answer.getError())));
        auto observing = answer.getObserving();
        auto served = wire::readModel(observing.getModel());
        if (!served.ok()) return served;
        Status status = readAccess(observing.getAccess(), chunkBytes, *served);
        if (!status.ok()) return Result<ModelSpec>(status.error());
        reader_ = observing.getReader();
        return share(observing.getAccess())
            .then([served = std::move(*served)](Status status) mutable -> Result<ModelSpec> {
              if (!status.ok()) return status.error();
              return std::move(served);
            });
      }));
}

kj::Promise<Result<StartRole>> Channel::awaitModel() {
  if (ended_) return Result<StartRole>(*ended_);
  return guarded<StartRole>(KJ_ASSERT_NONNULL(trainer_).awaitModelRequest().send().then(
      [](capnp::Response<schema::AwaitResult> answer) -> Result<StartRole> {
        if (answer.isError()) return cleared(wire::readError(answer.getError()));
        return answer.isMustInitialize() ? StartRole::bringValues : StartRole::go;
      }));
}

kj::Promise<Status> Channel::initializeSlice(const Slice& slice, std::span<const float> values) {
  auto request = KJ_ASSERT_NONNULL(trainer_).initializeRequest(capnp::MessageSize{16, 0});
  request.setShard(slice.shard.value);
  request.setOffset(slice.offset);
  request.adoptValues(
      wire::referenceFloats(static_cast<schema::Trainer::InitializeParams::Builder&>(request), values));
  return request.send().then([](capnp::Response<schema::Trainer::InitializeResults> answer) {
    return wire::readStatus(answer.getStatus());
  });
}

kj::Promise<Result<PushInfo>> Channel::bringValues(std::span<const float> values, uint32_t window) {
  if (ended_) return Result<PushInfo>(*ended_);
  auto start = std::chrono::steady_clock::now();
  auto sent = sendInWindow(terms_.slices, window, [this, values](const Slice& slice) {
    return initializeSlice(slice, values.subspan(slice.arena, slice.count));
  });
  return guarded<PushInfo>(sent.then([this, start](Status status) -> kj::Promise<Result<PushInfo>> {
    if (!status.ok()) return Result<PushInfo>(cleared(status.error()));
    return KJ_ASSERT_NONNULL(trainer_).initializedRequest().send().then(
        [start](capnp::Response<schema::Trainer::InitializedResults> answer) -> Result<PushInfo> {
          Status status = wire::readStatus(answer.getStatus());
          if (!status.ok()) return cleared(status.error());
          return PushInfo{.seconds = secondsSince(start)};
        });
  }));
}

void Channel::noteVersion(PullInfo& info, const Slice& slice, uint64_t version) {
  Version& oldest = info.versions[slice.shard.value];
  oldest = std::min(oldest, Version{version});
}

kj::Promise<Status> Channel::pullSlice(uint64_t pull, const Slice& slice, std::span<float> into,
                                       PullInfo& info) {
  auto request = KJ_ASSERT_NONNULL(reader_).pullRequest(capnp::MessageSize{8, 0});
  request.setPull(pull);
  request.setShard(slice.shard.value);
  request.setOffset(slice.offset);
  request.setCount(slice.count);
  PlaceKey key{pull, slice.shard.value, slice.offset};
  if (terms_.pullCodec) {
    request.setCodec(std::string(terms_.pullCodec->name()).c_str());
  } else {
    places_[key] = into;
  }
  auto forget = kj::defer([this, key] { places_.erase(key); });
  return request.send()
      .then([this, into, &info, slice](capnp::Response<schema::PullResult> answer) -> Status {
        if (answer.isError()) return cleared(wire::readError(answer.getError()));
        const auto bytes = wire::bytesIn(answer.getSlice().getValues());
        info.bytes += bytes.size();
        noteVersion(info, slice, answer.getSlice().getVersion());
        if (terms_.pullCodec) return decodeSlice(bytes, into);
        if (bytes.size() != into.size_bytes()) {
          return {ErrorCode::protocolMismatch, "the daemon sent " + std::to_string(bytes.size()) +
                                                   " bytes for a slice of " + std::to_string(into.size()) +
                                                   " elements"};
        }
        // Large slices were read straight into their place.
        if (static_cast<const void*>(bytes.data()) != into.data()) {
          std::memcpy(into.data(), bytes.data(), bytes.size());
        }
        return {};
      })
      .attach(kj::mv(forget));
}

kj::Promise<Result<PullInfo>> Channel::pull(std::span<float> destination, uint32_t window, bool onDevice) {
  if (ended_) return Result<PullInfo>(*ended_);
  if (reader_ == nullptr)
    return Result<PullInfo>(ErrorCode::invalidArgument, "pull() comes after join() or observe()");
  auto start = std::chrono::steady_clock::now();
  auto info = kj::heap<PullInfo>();
  info->versions.resize(terms_.plan.shards.size(), kUnread);
  uint64_t number = ++lastPull_;
  auto received = sendInWindow(carried_, window,
                               [this, number, destination, onDevice, &info = *info](const Slice& slice) {
                                 const auto into = destination.subspan(slice.arena, slice.count);
                                 if (!onDevice) return pullSlice(number, slice, into, info);
                                 return deviceRings_ ? pullThroughDevice(number, slice, into, info)
                                                     : pullByWayOfHost(number, slice, into, info);
                               });
  return guarded<PullInfo>(
      received.then([start, info = kj::mv(info)](Status status) mutable -> Result<PullInfo> {
        if (!status.ok()) return status.error();
        info->seconds = secondsSince(start);
        std::ranges::replace(info->versions, kUnread, Version{});  // shards that other connections carry
        return std::move(*info);
      }));
}

kj::Promise<Status> Channel::leave() {
  if (ended_) return Status(*ended_);
  if (trainer_ == nullptr) return Status();
  auto call = KJ_ASSERT_NONNULL(trainer_).leaveRequest().send().then(
      [](capnp::Response<schema::Trainer::LeaveResults> answer) -> Result<bool> {
        Status status = wire::readStatus(answer.getStatus());
        if (!status.ok()) return cleared(status.error());
        return true;
      });
  return guarded<bool>(kj::mv(call)).then([](Result<bool> done) { return done.status(); });
}

kj::Promise<void> Channel::pingOnAndOn(uint64_t left, std::vector<double>& seconds) {
  if (left == 0) return kj::READY_NOW;
  auto start = std::chrono::steady_clock::now();
  return KJ_ASSERT_NONNULL(reading_)
      .pingRequest(capnp::MessageSize{4, 0})
      .send()
      .then([this, left, start, &seconds](auto&&) {
        seconds.push_back(secondsSince(start));
        return pingOnAndOn(left - 1, seconds);
      });
}

kj::Promise<Result<PingInfo>> Channel::ping(uint64_t calls, uint32_t outstanding) {
  if (ended_) return Result<PingInfo>(*ended_);
  auto start = std::chrono::steady_clock::now();
  auto info = kj::heap<PingInfo>();
  info->seconds.reserve(calls);
  uint64_t lines = std::max<uint64_t>(1, std::min<uint64_t>(outstanding, calls));
  auto running = kj::heapArrayBuilder<kj::Promise<void>>(lines);
  for (uint64_t i = 0; i < lines; i++) {
    running.add(
        pingOnAndOn(calls / lines + (i < calls % lines ? 1 : 0), info->seconds).eagerlyEvaluate(nullptr));
  }
  auto& seconds = info->elapsed;
  return guarded<PingInfo>(kj::joinPromises(running.finish())
                               .then([start, &seconds, info = kj::mv(info)]() mutable -> Result<PingInfo> {
                                 seconds = secondsSince(start);
                                 return std::move(*info);
                               }));
}

}  // namespace psd

// The contract of every SliceTransport, with a daemon in its own process. A new one is a line of kWays.

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "common/types/model_layout.h"
#include "test/contract/transport_rig.h"
#include "test/cuda/device_array.h"
#include "test/cuda/device_or_skip.h"
#include "test/support/random.h"
#include "trainer/client/transport/codec_transport.h"
#include "trainer/client/transport/device_rings.h"
#include "trainer/client/transport/host_ring.h"
#include "trainer/client/transport/host_staged_transport.h"
#include "trainer/client/transport/slice_queue.h"

namespace psd::transport_contract_test {
namespace {

using namespace testing;

constexpr uint64_t kGrain = kLayoutGrainElements;
constexpr uint64_t kSliceMost = 64 * kGrain;
constexpr uint32_t kShards = 2;
constexpr uint32_t kWindow = TransportRig::kWindow;
const ModelSpec kModel{"net", {{"w", DType::f32, {40 * kSliceMost + 3 * kGrain}}, {"b", DType::f32, {7}}}};

template <class T>
bool isA(const SliceTransport& transport) {
  return dynamic_cast<const T*>(&transport) != nullptr;
}

/// A transport's setup for values.
struct TransportCase {
  const char* name;
  bool (*pushesBy)(const SliceTransport&);
  bool (*pullsBy)(const SliceTransport&);
  Transport wanted = Transport::rpc;
  bool onDevice = false;
  bool codec = false;
  bool hasPlaces = false;  ///< of a ring
};

constexpr TransportCase kWays[] = {
    {"messages", isA<MessageTransport>, isA<MessageTransport>},
    {"codec", isA<CodecTransport>, isA<CodecTransport>, Transport::rpc, false, true},
    {"host ring", isA<HostRing>, isA<MessageTransport>, Transport::shm, false, false, true},
    {"device rings", isA<DeviceRings>, isA<DeviceRings>, Transport::shm, true, false, true},
    {"messages by way of host memory", isA<HostStagedTransport>, isA<HostStagedTransport>, Transport::rpc,
     true},
    {"codec by way of host memory", isA<HostStagedTransport>, isA<HostStagedTransport>, Transport::rpc, true,
     true},
};

/// Values in the memory that a transport reads them from. Owned by one thread.
class Values {
 public:
  Values(bool onDevice, std::vector<float> values) : host_(std::move(values)) {
    if (onDevice) device_.emplace(host_);
  }
  std::span<float> span() { return device_ ? device_->span() : std::span<float>(host_); }
  std::vector<float> get() const { return device_ ? device_->values() : host_; }
  /// Compares bits; returns one result for all of them.
  bool are(const std::vector<float>& expected) const {
    const std::vector<float> found = get();
    return found.size() == expected.size() &&
           std::memcmp(found.data(), expected.data(), found.size() * sizeof(float)) == 0;
  }
  bool areAll(float value) const { return are(std::vector<float>(host_.size(), value)); }
  void set(std::vector<float> values) {
    host_ = std::move(values);
    if (device_) device_->set(host_);
  }

 private:
  std::vector<float> host_;
  std::optional<DeviceArray> device_;
};

/// A single trainer with a daemon whose model is all zeros and whose updates subtract the gradient. Owned by
/// one thread.
struct Rig : TransportRig {
  explicit Rig(const TransportCase& way) : way(way) {
    deviceOrSkip();
    std::vector<std::string> settings = {
        "shards=" + std::to_string(kShards), R"(optimizer={"type":"sgd","lr":1})",
        R"(limits={"slice_bytes":)" + std::to_string(kSliceMost * sizeof(float)) + "}"};
    // Half precision represents all integers that are drawn here.
    if (way.codec) settings.push_back(R"(codecs={"push":{"default":"fp16"},"pull":{"default":"fp16"}})");
    setenv("PSD_TEST_DEVICE", way.onDevice ? "cuda:0" : "cpu", 1);
    join(settings, kModel, way.wanted, way.onDevice ? 0 : -1);
    if (way.codec) {
      transports->useCodecs(std::make_shared<EncodedPushes>(terms.codec, terms.slices, 1), terms.pullCodec);
    }
    const auto choice = transports->choose(way.onDevice, false);
    PSD_REQUIRE_OK(choice);
    pushes = choice->slices().push;
    pulls = choice->slices().pull;
    initializeZeros();
  }

  void initializeZeros() {
    for (const Slice& slice : terms.slices) {
      auto request = connection->trainer().initializeRequest();
      request.setShard(slice.shard.value);
      request.setOffset(slice.offset);
      request.initValues(static_cast<unsigned>(slice.count * sizeof(float)));
      REQUIRE(wait(request.send().dropPipeline()).getStatus().isOk());
    }
    initialized();
  }

  uint64_t elements() const { return terms.plan.totalElements(); }
  Values values(std::vector<float> values) const { return {way.onDevice, std::move(values)}; }
  Values filled(float value) const { return values(std::vector<float>(elements(), value)); }
  /// Integers, many of them distinct.
  std::vector<float> drawn(Random& random) const {
    std::vector<float> drawn(elements());
    for (float& value : drawn) value = static_cast<float>(random.between(1, 2000)) - 1000.f;
    return drawn;
  }

  PushRequest request(uint64_t step, Values& gradient) const {
    return {.step = Step{step},
            .gradient = gradient.span(),
            .samples = 1,
            .parts = kShards,
            .onDevice = way.onDevice};
  }
  /// `request` outlives the promise.
  kj::Promise<SlicePushed> push(const PushRequest& request, const Slice& slice) const {
    return pushes->push(request, slice,
                        {request.gradient.floats().subspan(slice.arena, slice.count), nullptr});
  }
  kj::Promise<Result<SlicePulled>> pull(uint64_t number, const Slice& slice, Values& into) const {
    return pulls->pull(number, slice, into.span().subspan(slice.arena, slice.count));
  }
  /// The whole gradient, a window of slices at a time.
  Status pushAll(uint64_t step, Values& gradient) {
    const PushRequest all = request(step, gradient);
    return wait(sendInWindow(terms.slices, std::min(kWindow, pushes->window()), [&](const Slice& slice) {
      return push(all, slice).then([](const SlicePushed& pushed) { return pushed.status; });
    }));
  }
  Status pullAll(uint64_t number, Values& into) {
    return wait(sendInWindow(terms.slices, kWindow, [&](const Slice& slice) {
      return pull(number, slice, into).then([](const Result<SlicePulled>& pulled) {
        return pulled.status();
      });
    }));
  }
  void checkModelIs(float value) {
    Values found = filled(std::numeric_limits<float>::quiet_NaN());
    PSD_REQUIRE_OK(pullAll(1'000'000, found));
    CHECK(found.areAll(value));
  }

  const TransportCase& way;
  SliceTransport* pushes = nullptr;
  SliceTransport* pulls = nullptr;
};

/// Runs `test` with each way, each on its own daemon.
void onEach(const std::function<void(Rig&)>& test) {
  for (const TransportCase& way : kWays) {
    INFO(way.name);
    Rig rig(way);
    test(rig);
  }
}

/// Every element once, in slices of random sizes on the grain, in random order; each shard starts and ends
/// with the smallest.
std::vector<Slice> oddSlices(const SessionTerms& terms, Random& random) {
  uint64_t most = 0;
  for (const Slice& slice : terms.slices) most = std::max(most, slice.count);
  std::vector<Slice> slices;
  for (const ShardRange& shard : terms.plan.shards) {
    for (uint64_t offset = 0; offset < shard.count;) {
      const uint64_t left = shard.count - offset;
      uint64_t count = random.between(1, most / kGrain) * kGrain;
      if (offset == 0 || left <= kGrain) count = kGrain;
      if (left > kGrain) count = std::min(count, left - kGrain);
      slices.push_back({shard.id, offset, std::min(count, left), shard.begin + offset, shard.count});
      offset += slices.back().count;
    }
  }
  std::shuffle(slices.begin(), slices.end(), random.engine());
  return slices;
}

void checkRefused(const Status& status, ErrorCode code) {
  REQUIRE_FALSE(status.ok());
  INFO(status.message());
  CHECK(errorCodeName(status.error().code) == errorCodeName(code));
  CHECK(status.message().find('\n') == std::string::npos);
}

const Error kGone{ErrorCode::unavailable, "gone"};

}  // namespace

TEST_CASE("Transport contract: each way uses its own transport, which reports what it does not support") {
  onEach([](Rig& rig) {
    CHECK(rig.way.pushesBy(*rig.pushes));
    CHECK(rig.way.pullsBy(*rig.pulls));
    CHECK(rig.pushes->canPush());
    CHECK(rig.pulls->canPull());
    CHECK(rig.pushes->window() >= 1);
    if (rig.pushes->canPull()) return;
    Values into = rig.filled(0);
    const auto refused =
        rig.wait(rig.pushes->pull(1, rig.terms.slices[0], into.span().subspan(0, rig.terms.slices[0].count)));
    checkRefused(refused.status(), ErrorCode::invalidArgument);
  });
}

TEST_CASE("Transport contract: the bits are equal both ways, for slices of any size at any offset") {
  onEach([](Rig& rig) {
    Random random(11);
    const std::vector<float> drawn = rig.drawn(random);
    Values gradient = rig.values(drawn), pulled = rig.filled(0);
    const PushRequest request = rig.request(1, gradient);
    for (const Slice& slice : oddSlices(rig.terms, random)) {
      INFO("shard " << slice.shard.value << ", " << slice.count << " from " << slice.offset);
      const SlicePushed answer = rig.wait(rig.push(request, slice));
      PSD_REQUIRE_OK(answer.status);
      CHECK(answer.bytes == slice.count * (rig.way.codec ? 2 : sizeof(float)));
    }
    for (const Slice& slice : oddSlices(rig.terms, random)) {
      const auto answer = rig.wait(rig.pull(1, slice, pulled));
      PSD_REQUIRE_OK(answer);
      CHECK(answer->version == Version{1});
      CHECK(answer->bytes == slice.count * (rig.way.codec ? 2 : sizeof(float)));
    }
    std::vector<float> expected;
    for (const float value : drawn) expected.push_back(0 - value);
    CHECK(pulled.are(expected));
    // Nothing is written outside the slice.
    Values one = rig.filled(0.5f);
    const Slice& slice = rig.terms.slices[3];
    PSD_REQUIRE_OK(rig.wait(rig.pull(2, slice, one)));
    std::vector<float> only(rig.elements(), 0.5f);
    std::copy_n(expected.begin() + static_cast<ptrdiff_t>(slice.arena), slice.count,
                only.begin() + static_cast<ptrdiff_t>(slice.arena));
    CHECK(one.are(only));
  });
}

TEST_CASE("Transport contract: more slices than its window are requested at once, and all complete") {
  onEach([](Rig& rig) {
    REQUIRE(rig.terms.slices.size() > 4 * kWindow);
    Values gradient = rig.filled(-3);
    PSD_REQUIRE_OK(rig.pushAll(1, gradient));
    // Pulls have no window of the transport's: it waits for places itself.
    Values first = rig.filled(0), second = rig.filled(0);
    std::vector<kj::Promise<Result<SlicePulled>>> asked;
    for (const Slice& slice : rig.terms.slices) {
      asked.push_back(rig.pull(1, slice, first));
      asked.push_back(rig.pull(2, slice, second));
    }
    for (auto& answer : asked) PSD_REQUIRE_OK(rig.wait(kj::mv(answer)));
    CHECK(first.areAll(3));
    CHECK(second.areAll(3));
  });
}

TEST_CASE("Transport contract: several pushes in flight keep their order") {
  onEach([](Rig& rig) {
    constexpr uint64_t kPushes = 5;
    Values gradient = rig.filled(-1);
    std::vector<PushRequest> requests;
    for (uint64_t step = 1; step <= kPushes; step++) requests.push_back(rig.request(step, gradient));
    SliceQueue queue;
    std::vector<kj::Promise<Status>> pushed;
    std::vector<std::pair<uint64_t, Version>> applied;  // by step, in the order of the answers
    const size_t slices = rig.terms.slices.size();
    std::vector<size_t> all(slices);
    for (size_t i = 0; i < slices; i++) all[i] = i;
    for (const PushRequest& request : requests) {
      pushed.push_back(
          queue.add(request.step, slices, std::min(kWindow, rig.pushes->window()), [&](size_t index) {
            return rig.push(request, rig.terms.slices[index]).then([&](const SlicePushed& answer) {
              if (answer.outcome == PushOutcome::applied) {
                applied.emplace_back(request.step.value, answer.version);
              }
              return answer.status;
            });
          }));
    }
    for (const PushRequest& request : requests) queue.ready(request.step, all);
    for (auto& push : pushed) PSD_REQUIRE_OK(rig.wait(kj::mv(push)));
    REQUIRE(applied.size() == kPushes * kShards);
    for (const auto& [step, version] : applied) CHECK(version == Version{step});
    rig.checkModelIs(kPushes);
  });
}

TEST_CASE("Transport contract: a rejected slice is a typed error, and the next one works") {
  onEach([](Rig& rig) {
    // The rejected part of an encoded gradient is sent with the next one.
    Values gradient = rig.filled(-1), zeros = rig.filled(0), into = rig.filled(0.5f);
    const PushRequest first = rig.request(1, zeros);
    Slice beyond = rig.terms.slices[0], large = beyond;
    beyond.offset = rig.terms.plan.shards[0].count;
    large.count = kSliceMost + kGrain;
    for (uint32_t i = 0; i < 3 * kWindow; i++) {
      for (const Slice& slice : {beyond, large}) {
        checkRefused(rig.wait(rig.push(first, slice)).status, ErrorCode::badSlice);
        checkRefused(rig.wait(rig.pull(1, slice, into)).status(), ErrorCode::badSlice);
      }
    }
    CHECK(into.areAll(0.5f));

    std::vector<float> bad(rig.elements(), -1);
    const Slice& slice = rig.terms.slices[2];
    bad[slice.arena + slice.count - 1] = std::numeric_limits<float>::quiet_NaN();
    Values notFinite = rig.values(bad);
    const PushRequest second = rig.request(2, notFinite);
    checkRefused(rig.wait(rig.push(second, slice)).status, ErrorCode::nonFinite);

    PSD_REQUIRE_OK(rig.pushAll(3, gradient));
    rig.checkModelIs(1);
  });
}

TEST_CASE(
    "Transport contract: when the connection breaks, every slice fails, and no memory is used any more") {
  onEach([](Rig& rig) {
    Values gradient = rig.filled(-1), into = rig.filled(0.5f);
    const PushRequest request = rig.request(1, gradient);
    rig.daemon.signal(SIGSTOP);
    const auto pushOne = [&](const Slice& slice) {
      return rig.push(request, slice).then([](const SlicePushed& pushed) { return pushed.status; });
    };
    const auto pullOne = [&](const Slice& slice) {
      return rig.pull(1, slice, into).then([](const Result<SlicePulled>& got) { return got.status(); });
    };
    std::vector<kj::Promise<Status>> asked;
    for (uint32_t i = 0; i < 2 * kWindow; i++) {
      const Slice& slice = rig.terms.slices[i];
      if (i < std::min(kWindow, rig.pushes->window())) {
        asked.push_back(rig.connection->call([&] { return pushOne(slice); }));
      }
      asked.push_back(rig.connection->call([&] { return pullOne(slice); }));
    }
    for (auto& answer : asked) REQUIRE_FALSE(answer.poll(rig.io.waitScope));
    rig.end(kGone);
    for (auto& answer : asked) {
      const Status ended = rig.wait(kj::mv(answer));
      checkRefused(ended, ErrorCode::unavailable);
      CHECK(ended.message() == kGone.message);
    }
    // From here on they are the caller's again.
    gradient.set(std::vector<float>(rig.elements(), std::numeric_limits<float>::quiet_NaN()));
    rig.daemon.signal(SIGCONT);
    // That of the status call is the only one.
    const auto status =
        rig.daemon.statusWhen([](const auto& now) { return now["gauges"]["connections_open"] == 1; });
    CHECK(status["counters"]["refused_non_finite"] == 0);
    rig.io.provider->getTimer().afterDelay(0 * kj::SECONDS).wait(rig.io.waitScope);
    CHECK(into.areAll(0.5f));
    // Nor is it used for anything later.
    for (const bool pulls : {false, true}) {
      const Slice& slice = rig.terms.slices[0];
      auto later = kj::evalNow([&] { return pulls ? pullOne(slice) : pushOne(slice); });
      const auto refused = rig.wait(later.catch_([](kj::Exception&&) { return Status(kGone); }));
      checkRefused(refused, ErrorCode::unavailable);
    }
  });
}

TEST_CASE("Transport contract: a place without an answer is not used again") {
  onEach([](Rig& rig) {
    Values gradient = rig.filled(-1);
    const PushRequest request = rig.request(1, gradient);
    rig.daemon.signal(SIGSTOP);
    {
      auto dropped = rig.push(request, rig.terms.slices[0]);
      CHECK_FALSE(dropped.poll(rig.io.waitScope));
    }
    auto next = kj::evalNow([&] { return rig.push(request, rig.terms.slices[1]); })
                    .then([](const SlicePushed& pushed) { return pushed.status; },
                          [](kj::Exception&& exception) {
                            CHECK(exception.getType() == kj::Exception::Type::DISCONNECTED);
                            return Status(kGone);
                          })
                    .eagerlyEvaluate(nullptr);
    CHECK(next.poll(rig.io.waitScope) == rig.way.hasPlaces);
    rig.daemon.signal(SIGCONT);
    CHECK(rig.wait(kj::mv(next)).ok() == !rig.way.hasPlaces);
  });
}

}  // namespace psd::transport_contract_test

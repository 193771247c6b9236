// Codecs over the wire, daemon and client in one process: the model equals the result of encoding and
// decoding by hand, the configuration decides which trainer may use which codec, and corrupt bytes change
// nothing.

#include <algorithm>
#include <cmath>
#include <future>
#include <limits>
#include <vector>

#include "common/types/model_layout.h"
#include "test/contract/codec_trainer.h"
#include "test/integration/raw_trainer.h"
#include "trainer/client/api/client.h"
#include "trainer/client/transport/gradient_encoder.h"
#include "trainer/client/transport/slices.h"

namespace psd::codec_test {
namespace {

using namespace testing;
using Json = nlohmann::ordered_json;

constexpr uint32_t kShards = 3;
constexpr uint64_t kWeights = 30'000;
constexpr uint64_t kChunkBytes = 16 << 10;
constexpr float kRate = 0.5f;  // exact: results can be compared bit by bit

ModelSpec weights() { return {"test", {{"w", DType::f32, {kWeights}}}}; }

Json configOf(const std::string& policy, Json codecs = Json::object()) {
  return {{"policy", {{"type", policy}}},
          {"shards", kShards},
          {"threads", 2},
          {"optimizer", {{"type", "sgd"}, {"lr", kRate}}},
          {"codecs", std::move(codecs)}};
}

struct Joined {
  std::unique_ptr<Client> client;
  JoinInfo info;
  std::vector<float> start = std::vector<float>(ModelLayout(weights()).totalElements());
};

Result<std::unique_ptr<Client>> connectTo(const LocalServer& server, const std::string& codec,
                                          const std::string& pullCodec, bool unixSocket = false) {
  ClientOptions options;
  options.servers = {unixSocket ? server.unixAddress() : server.address()};
  options.chunkBytes = kChunkBytes;
  options.codec = codec;
  options.pullCodec = pullCodec;
  return Client::connect(options);
}

Result<Joined> join(const LocalServer& server, const std::string& codec, const std::string& pullCodec,
                    uint64_t seed = 0, bool unixSocket = false) {
  Joined joined;
  Random random(seed);
  if (seed != 0) joined.start = normalValues(joined.start.size(), random);
  PSD_ASSIGN_OR_RETURN(joined.client, connectTo(server, codec, pullCodec, unixSocket));
  PSD_ASSIGN_OR_RETURN(joined.info, joined.client->join({Rank{0}, 1}, weights(), [&] {
    return std::span<const float>(joined.start);
  }));
  return joined;
}

Joined mustJoin(const LocalServer& server, const std::string& codec, const std::string& pullCodec = "",
                uint64_t seed = 0, bool unixSocket = false) {
  auto joined = join(server, codec, pullCodec, seed, unixSocket);
  PSD_REQUIRE_OK(joined);
  return std::move(*joined);
}

std::vector<float> pulled(Client& client) {
  std::vector<float> values(ModelLayout(weights()).totalElements());
  PSD_REQUIRE_OK(client.pull(values).wait());
  return values;
}

std::vector<Slice> slices() {
  return cutIntoSlices(ShardPlan::make(ModelLayout(weights()).totalElements(), kShards),
                       kChunkBytes / sizeof(float));
}

/// The expected weights, slice by slice.
class Reference {
 public:
  Reference(const std::string& spec, std::vector<float> start)
      : weights_(std::move(start)), encoder_(codecNamed(spec), 1) {}

  /// A `dropped` push is added to the next.
  void push(uint64_t step, const std::vector<float>& gradient, bool dropped = false) {
    for (const Slice& slice : slices()) {
      auto encoded =
          encoder_.encode(Step{step}, slice.arena, std::span(gradient).subspan(slice.arena, slice.count));
      PSD_REQUIRE_OK(encoded);
      bytes_ += encoded->bytes.size();
      if (dropped) {
        encoder_.restoreResidual(slice.arena, slice.count, encoded->bytes);
        continue;
      }
      std::vector<float> values(slice.count);
      encoder_.codec().decode(encoded->bytes, slice.count, 0, values);
      for (size_t i = 0; i < values.size(); i++) weights_[slice.arena + i] -= kRate * values[i];
    }
  }
  const std::vector<float>& weights() const { return weights_; }
  uint64_t bytes() const { return bytes_; }

 private:
  std::vector<float> weights_;
  GradientEncoder encoder_;
  uint64_t bytes_ = 0;
};

TEST_CASE("a trainer with any codec makes the model that its decoded gradients make") {
  for (const std::string policy : {"hogwild", "locked"}) {
    for (const std::string_view name : codecNames()) {
      INFO(policy << ", " << name);
      LocalServer server(configOf(policy));
      Joined trainer = mustJoin(server, std::string(name), "none", 51);
      CHECK(trainer.info.codec == codecNamed(name)->spec());
      Reference reference(std::string(name), trainer.start);
      Random random(52);
      uint64_t step = 0;
      for (int i = 0; i < 4; i++) {
        const std::vector<float> gradient = normalValues(trainer.start.size(), random);
        PSD_REQUIRE_OK(trainer.client->push(Step{++step}, gradient, 1, {}).wait());
        reference.push(step, gradient);
      }
      CHECK(pulled(*trainer.client) == reference.weights());

      // Several in flight at once, one of them sent as its parts become ready.
      std::vector<std::vector<float>> gradients;
      std::vector<Pending<PushInfo>> answers;
      for (int i = 0; i < 3; i++) gradients.push_back(normalValues(trainer.start.size(), random));
      answers.push_back(trainer.client->push(Step{++step}, gradients[0], 1, {}));
      reference.push(step, gradients[0]);
      auto partial = trainer.client->beginPush(Step{++step}, gradients[1], 1, {});
      reference.push(step, gradients[1]);
      for (uint64_t end = gradients[1].size(); end > 0;) {  // from the back, in the order of a backward pass
        const uint64_t some = std::min<uint64_t>(end, 16 * random.between(1, 300));
        partial->ready(end - some, some);
        end -= some;
      }
      answers.push_back(partial->finish());
      answers.push_back(trainer.client->push(Step{++step}, gradients[2], 1, {}));
      reference.push(step, gradients[2]);
      for (auto& answer : answers) PSD_REQUIRE_OK(answer.wait());
      CHECK(pulled(*trainer.client) == reference.weights());
      CHECK(trainer.client->bytesPushed() == reference.bytes());

      const Json status = server.status();
      const Json& self = status["trainers"][0];
      CHECK(self["codec"] == codecNamed(name)->spec());
      CHECK(self["pushed_bytes"] == reference.bytes());
      CHECK(self["pushed_value_bytes"] == step * trainer.start.size() * sizeof(float));
      CHECK(status["counters"]["push_bytes"] == reference.bytes());
      PSD_REQUIRE_OK(trainer.client->leave());
    }
  }
}

TEST_CASE("a gradient of mostly zeros travels as its other values") {
  for (const std::string policy : {"hogwild", "locked", "sync"}) {
    for (const std::string optimizer : {"sgd", "adam"}) {  // zeros change nothing, or something
      INFO(policy << ", " << optimizer);
      Json config = configOf(policy);
      config["optimizer"] = {{"type", optimizer}, {"lr", kRate}};
      LocalServer one(config), other(config);
      Joined sparse = mustJoin(one, "none", "", 57);
      Joined dense = mustJoin(other, "none", "", 57, true);  // in shared memory nothing is encoded
      const size_t size = sparse.start.size();
      std::vector<Version> basis;
      for (uint64_t step = 1; step <= 3; step++) {
        std::vector<float> gradient(size);
        for (size_t row = step; row < size / 16; row += 40) {
          for (size_t i = 0; i < 16; i++) gradient[16 * row + i] = static_cast<float>(row + i + step);
        }
        const auto pushed = sparse.client->push(Step{step}, gradient, 1, basis).wait();
        PSD_REQUIRE_OK(pushed);
        CHECK(pushed->bytes < size * sizeof(float) / 20);
        const auto whole = dense.client->push(Step{step}, gradient, 1, basis).wait();
        PSD_REQUIRE_OK(whole);
        CHECK(whole->bytes == size * sizeof(float));
        basis = pushed->versions;
      }
      std::vector<float> half(size);
      for (size_t i = 0; i < size; i += 2) half[i] = 1;
      for (Joined* each : {&sparse, &dense}) {
        const auto pushed = each->client->push(Step{4}, half, 1, basis).wait();
        PSD_REQUIRE_OK(pushed);
        CHECK(pushed->bytes == size * sizeof(float));  // places would take more than they save
      }
      CHECK(pulled(*sparse.client) == pulled(*dense.client));
      PSD_REQUIRE_OK(sparse.client->leave());
      PSD_REQUIRE_OK(dense.client->leave());
    }
  }
}

TEST_CASE("a push that is late for its round goes into the next one, of all shards") {
  for (const std::string name : {"int8", "topk", "onebit", "dgc"}) {
    INFO(name);
    LocalServer server(configOf("sync"));
    Joined trainer = mustJoin(server, name, "none", 55);
    Reference reference(name, trainer.start);
    Random random(56);
    const auto push = [&](uint64_t step, uint64_t basis, PushOutcome expected) {
      const std::vector<float> gradient = normalValues(trainer.start.size(), random);
      auto answer =
          trainer.client->push(Step{step}, gradient, 1, std::vector<Version>(kShards, Version{basis})).wait();
      PSD_REQUIRE_OK(answer);
      REQUIRE(answer->outcome == expected);
      reference.push(step, gradient, expected != PushOutcome::applied);
    };
    push(1, 0, PushOutcome::applied);
    push(2, 0, PushOutcome::late);
    push(3, 1, PushOutcome::applied);
    CHECK(pulled(*trainer.client) == reference.weights());
    PSD_REQUIRE_OK(trainer.client->leave());
  }
}

TEST_CASE("pulls through a codec bring what it makes of the parameters, and fewer bytes") {
  for (const std::string policy : {"hogwild", "locked"}) {
    for (const std::string_view name : parameterCodecNames()) {
      INFO(policy << ", " << name);
      LocalServer server(configOf(policy));
      Joined trainer = mustJoin(server, "none", std::string(name), 53);
      CHECK(trainer.info.pullCodec == name);
      const auto codec = codecNamed(name);
      std::vector<float> expected(trainer.start.size());
      uint64_t bytes = 0;
      for (const Slice& slice : slices()) {
        EncodedBytes encoded(codec->encodedBytes(slice.count));
        PSD_REQUIRE_OK(
            codec->encode(std::span(trainer.start).subspan(slice.arena, slice.count), 0, encoded.data()));
        codec->decode(encoded.span(), slice.count, 0, std::span(expected).subspan(slice.arena, slice.count));
        bytes += encoded.size();
      }
      CHECK(pulled(*trainer.client) == expected);
      CHECK(trainer.client->bytesPulled() == bytes);
      CHECK(server.status()["counters"]["pull_bytes"] == bytes);
      const auto reader = connectTo(server, "", std::string(name));
      PSD_REQUIRE_OK(reader);
      const auto observed = (*reader)->observe({});
      PSD_REQUIRE_OK(observed);
      CHECK(observed->pullCodec == name);
      CHECK(observed->model.signature() == weights().signature());
      CHECK(pulled(**reader) == expected);
      CHECK((*reader)->bytesPulled() == bytes);
      PSD_REQUIRE_OK(trainer.client->leave());
    }
  }
}

TEST_CASE("parameters that a codec has no room for are not sent through it") {
  LocalServer server(configOf("hogwild"));
  Joined trainer = mustJoin(server, "none", "fp16");
  std::vector<float> gradient(trainer.start.size());
  gradient[5] = 1e6f;
  PSD_REQUIRE_OK(trainer.client->push(Step{1}, gradient, 1, {}).wait());
  const auto refused = trainer.client->pull(gradient).wait();
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::nonFinite);
  CHECK(refused.message().find("fp16") != std::string::npos);
}

TEST_CASE("the daemon says which codecs trainers may use, and which they do when they do not care") {
  LocalServer server(
      configOf("locked", {{"push", {{"allowed", {"int8", "topk"}}, {"default", "topk:fraction=0.2"}}},
                          {"pull", {{"allowed", {"none", "bf16"}}, {"default", "bf16"}}}}));
  const auto refused = join(server, "fp16", "");
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::invalidArgument);
  CHECK(refused.error().message == "pushes: codec 'fp16' is not allowed here; allowed: int8, topk");
  CHECK(join(server, "", "int8").error().message ==
        "pulls: codec 'int8' is not allowed here; allowed: none, bf16");
  const Joined trainer = mustJoin(server, "");
  CHECK((*connectTo(server, "", "int8"))->observe({}).error().message ==
        "pulls: codec 'int8' is not allowed here; allowed: none, bf16");
  CHECK((*connectTo(server, "", ""))->observe({})->pullCodec == "none");
  CHECK((*connectTo(server, "int8", ""))->observe({}).error().code == ErrorCode::invalidArgument);
  CHECK(trainer.info.codec == "topk:fraction=0.2");
  CHECK(trainer.info.pullCodec == "bf16");
  PSD_REQUIRE_OK(trainer.client->leave());
  const Joined other = mustJoin(server, "topk:fraction=0.5", "none");
  CHECK(other.info.codec == "topk:fraction=0.5");
  CHECK(other.info.pullCodec == "none");
}

/// The parameters of raw_trainer.h's small model, read by an ordinary client.
std::vector<float> modelOf(const LocalServer& server) {
  return std::async(std::launch::async,
                    [&]() -> std::vector<float> {
                      ClientOptions options;
                      options.servers = {server.address()};
                      auto client = Client::connect(options);
                      std::vector<float> values(kElements);
                      const bool read = client.ok() && (*client)->observe(model()).ok() &&
                                        (*client)->pull(values).wait().ok();
                      return read ? values : std::vector<float>();
                    })
      .get();
}

capnp::Data::Reader dataOf(EncodedBytes& bytes) {
  return {reinterpret_cast<const kj::byte*>(bytes.data()), bytes.size()};
}

void checkRefused(const Status& status, ErrorCode code, const std::string& words) {
  REQUIRE_FALSE(status.ok());
  INFO(status.message());
  CHECK(errorCodeName(status.error().code) == errorCodeName(code));
  CHECK(status.message().find(words) != std::string::npos);
}

TEST_CASE("a slice with bad bytes is refused whole, and may come again") {
  const uint32_t count = 1008;
  for (const std::string policy : {"hogwild", "locked"}) {
    for (const char* name : {"fp16", "bf16", "int8", "int4", "e3m0", "topk", "randk", "onebit", "dgc"}) {
      INFO(policy << ", " << name);
      LocalServer server({{"policy", {{"type", policy}}}, {"shards", 2}, {"optimizer", {{"lr", 1.0}}}});
      auto io = kj::setupAsyncIo();
      RawTrainer trainer(io, server, 0, 1, {.codec = name});
      trainer.initializeZeros();
      const auto codec = codecNamed(name);
      Random random(54);
      const std::vector<float> values = normalValues(count, random);
      EncodedBytes good(codec->encodedBytes(count)), cut = good, infinite = good;
      PSD_REQUIRE_OK(codec->encode(values, 1, good.data()));
      cut = good.first(good.size() - 2);
      infinite = good.first(good.size());
      for (size_t i = 0; i < infinite.size(); i++) infinite[i] = std::byte{0xff};

      RawTrainer::Slice slice{.codec = name, .count = count};
      checkRefused(trainer.push(slice, dataOf(cut)), ErrorCode::badSlice, name);
      CHECK_FALSE(trainer.push(slice, dataOf(infinite)).ok());
      slice.count = 1'000'000;
      checkRefused(trainer.push(slice, dataOf(good)), ErrorCode::badSlice, "the shard has 2000 elements");
      slice.count = count;
      slice.codec = name == std::string("fp16") ? "bf16" : "fp16";
      checkRefused(trainer.push(slice, dataOf(good)), ErrorCode::invalidArgument,
                   "was not agreed when joining");
      CHECK(modelOf(server) == std::vector<float>(kElements));

      slice.codec = name;
      PSD_REQUIRE_OK(trainer.push(slice, dataOf(good)));
      slice.offset = count;
      slice.count = 2000 - count;
      EncodedBytes rest(codec->encodedBytes(slice.count));
      PSD_REQUIRE_OK(codec->encode(std::vector<float>(slice.count), 1, rest.data()));
      PSD_REQUIRE_OK(trainer.push(slice, dataOf(rest)));
      std::vector<float> expected(kElements);
      codec->decode(good.span(), count, 0, std::span(expected).first(count));
      for (float& value : expected) value = 0 - value;
      CHECK(modelOf(server) == expected);
    }
  }
}

}  // namespace
}  // namespace psd::codec_test

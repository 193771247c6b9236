// Models with tensors of bf16 and f16: what travels, over which transports, under which policies.

#include <cstring>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/codec/float16.h"
#include "common/types/model_layout.h"
#include "test/integration/raw_trainer.h"
#include "test/support/catch.h"
#include "test/support/local_server.h"
#include "test/support/random.h"
#include "trainer/client/api/client.h"

namespace psd::dtypes_test {
namespace {

using Json = nlohmann::ordered_json;
using testing::LocalServer;
using testing::RawTrainer;

const ModelSpec kModel{"mixed",
                       {{"wide", DType::f32, {40}},
                        {"narrow", DType::bf16, {70}},
                        {"half", DType::f16, {33}},
                        {"again", DType::bf16, {5}}}};

Json config(const std::string& policy) {
  return {{"policy", {{"type", policy}}}, {"optimizer", {{"type", "sgd"}, {"lr", 0.5}}}, {"shards", 1}};
}

/// A value as a tensor of that dtype holds it.
float rounded(DType dtype, float value) {
  switch (dtype) {
    case DType::bf16: return fromBfloat16(toBfloat16(value));
    case DType::f16: return fromHalf(toHalf(value));
    default: return value;
  }
}

/// A flat array of the model in both forms.
struct Arrays {
  const ModelLayout layout{kModel};
  std::vector<float> wide = std::vector<float>(layout.totalElements());
  std::vector<uint64_t> words = std::vector<uint64_t>(layout.byteAt(layout.totalElements()) / 8 + 8);

  std::byte* native() {
    const auto place = reinterpret_cast<uintptr_t>(words.data());
    return reinterpret_cast<std::byte*>(words.data()) + (64 - place % 64) % 64;
  }
  ArenaValues nativeValues() { return ArenaValues::native(native(), layout.totalElements()); }
  /// Calls visit(dtype, element) for each element of each tensor.
  template <class Visit>
  void forEach(const Visit& visit) const {
    for (size_t i = 0; i < kModel.tensors.size(); i++) {
      const TensorPlace& place = layout.places()[i];
      for (uint64_t e = place.begin; e < place.begin + place.count; e++) visit(kModel.tensors[i].dtype, e);
    }
  }
  float nativeAt(DType dtype, uint64_t element) {
    const std::byte* const at = native() + layout.byteAt(element);
    if (dtype == DType::f32) return *reinterpret_cast<const float*>(at);
    const auto bits = *reinterpret_cast<const uint16_t*>(at);
    return dtype == DType::bf16 ? fromBfloat16(bits) : fromHalf(bits);
  }
  void setNative(DType dtype, uint64_t element, float value) {
    std::byte* const at = native() + layout.byteAt(element);
    const uint16_t bits = dtype == DType::bf16 ? toBfloat16(value) : toHalf(value);
    if (dtype == DType::f32) std::memcpy(at, &value, sizeof value);
    if (dtype != DType::f32) std::memcpy(at, &bits, sizeof bits);
  }
};

std::unique_ptr<Client> connect(const LocalServer& server, Transport transport,
                                const std::string& codec = "") {
  ClientOptions options;
  options.servers = {server.address()};
  options.transport = transport;
  options.pullCodec = codec;
  auto client = Client::connect(options);
  PSD_REQUIRE_OK(client);
  return *std::move(client);
}

TEST_CASE("native and float32 arrays train the same float32 parameters under each policy") {
  for (const std::string policy : {"hogwild", "locked", "sync"}) {
    for (const Transport transport : {Transport::rpc, Transport::automatic}) {
      INFO(policy << ", transport " << static_cast<int>(transport));
      LocalServer server(config(policy));
      const std::vector<float> drawn = testing::normalValues(1000, 7);
      size_t next = 0;
      const auto draw = [&] { return drawn[next++ % drawn.size()]; };
      Arrays initial, pulled;
      initial.forEach([&](DType dtype, uint64_t e) {
        initial.wide[e] = draw();
        initial.setNative(dtype, e, initial.wide[e]);
      });
      const auto client = connect(server, transport);
      const auto joined = client->join({Rank{0}, 1}, kModel, [&] { return initial.nativeValues(); });
      PSD_REQUIRE_OK(joined);
      CHECK(joined->shardCount == 4);
      std::vector<float> masters = initial.wide;
      initial.forEach([&](DType dtype, uint64_t e) { masters[e] = rounded(dtype, masters[e]); });
      std::vector<Version> basis;
      for (uint64_t step = 1; step <= 4; step++) {
        Arrays gradient;
        const bool native = step % 2 == 0;
        gradient.forEach([&](DType dtype, uint64_t e) {
          gradient.wide[e] = draw();
          gradient.setNative(dtype, e, gradient.wide[e]);
          masters[e] -= 0.5f * rounded(dtype, gradient.wide[e]);
        });
        const ConstArenaValues sent = native ? ConstArenaValues(gradient.nativeValues()) : gradient.wide;
        PSD_REQUIRE_OK(client->push(Step{step}, sent, 1, basis).wait());
        PSD_REQUIRE_OK(client->pull(pulled.nativeValues()).wait());
        const auto read = client->pull(pulled.wide).wait();
        PSD_REQUIRE_OK(read);
        basis = read->versions;
        bool same = true;
        pulled.forEach([&](DType dtype, uint64_t e) {
          const float wanted = rounded(dtype, masters[e]);
          same = same && pulled.nativeAt(dtype, e) == wanted && pulled.wide[e] == wanted;
        });
        CHECK(same);
      }
    }
  }
}

TEST_CASE("16-bit gradients of mostly zeros travel as their other values") {
  const ModelSpec model{"narrow", {{"w", DType::bf16, {30'000}}}};
  LocalServer server(config("locked"));
  const auto client = connect(server, Transport::rpc);
  std::vector<float> values(ModelLayout(model).totalElements());
  const auto none = [&] { return ConstArenaValues(values); };
  PSD_REQUIRE_OK(client->join({Rank{0}, 1}, model, none));
  for (size_t i = 160; i < 192; i++) values[i] = static_cast<float>(i) / 3;
  const auto pushed = client->push(Step{1}, values, 1, {}).wait();
  PSD_REQUIRE_OK(pushed);
  CHECK(pushed->bytes < 300);
  std::vector<float> pulled(values.size());
  PSD_REQUIRE_OK(client->pull(pulled).wait());
  for (size_t i = 0; i < values.size(); i++) {
    const float gradient = fromBfloat16(toBfloat16(values[i]));
    REQUIRE(pulled[i] == fromBfloat16(toBfloat16(-0.5f * gradient)));
  }
}

TEST_CASE("a pull in a codec is rounded to the dtype of a native array") {
  LocalServer server(config("locked"));
  const auto client = connect(server, Transport::rpc, "int8");
  Arrays initial, pulled;
  initial.forEach([&](DType dtype, uint64_t e) { initial.setNative(dtype, e, 1.f / 3); });
  PSD_REQUIRE_OK(client->join({Rank{0}, 1}, kModel, [&] { return initial.nativeValues(); }));
  PSD_REQUIRE_OK(client->pull(pulled.nativeValues()).wait());
  PSD_REQUIRE_OK(client->pull(pulled.wide).wait());
  pulled.forEach([&](DType dtype, uint64_t e) {
    CHECK(std::abs(pulled.wide[e] - 1.f / 3) < 0.01f);
    CHECK(pulled.nativeAt(dtype, e) == rounded(dtype, pulled.wide[e]));
  });
}

TEST_CASE("a gradient or an initial value beyond the range of f16 is refused before it is sent") {
  LocalServer server(config("locked"));
  const auto client = connect(server, Transport::rpc);
  Arrays values;
  const uint64_t element = values.layout.places()[2].begin;
  values.wide[element] = 70000;
  const auto refused = client->join({Rank{0}, 1}, kModel, [&] { return ConstArenaValues(values.wide); });
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::nonFinite);
  values.wide[element] = 1;
  PSD_REQUIRE_OK(client->join({Rank{0}, 1}, kModel, [&] { return ConstArenaValues(values.wide); }));
  values.wide[element] = 70000;
  const auto pushed = client->push(Step{1}, values.wide, 1, {}).wait();
  REQUIRE_FALSE(pushed.ok());
  CHECK(pushed.error().code == ErrorCode::nonFinite);
}

capnp::Data::Reader dataOf(const std::vector<uint16_t>& values, size_t bytes) {
  return {reinterpret_cast<const kj::byte*>(values.data()), bytes};
}

TEST_CASE("Protocol: a slice is whole, finite values of the shard's dtype") {
  LocalServer server(config("locked"));
  auto io = kj::setupAsyncIo();
  const ModelSpec model{"narrow", {{"w", DType::bf16, {32}}}};
  RawTrainer trainer(io, server, 0, 1, {.model = model});
  std::vector<uint16_t> values(64, 0x3f80);
  const auto initialize = [&](size_t bytes) {
    auto request = trainer.session().initializeRequest();
    request.setValues(dataOf(values, bytes));
    return wire::readStatus(trainer.peer().wait(request.send().dropPipeline()).getStatus());
  };
  const auto refused = [](const Status& status, ErrorCode code, const std::string& words) {
    REQUIRE_FALSE(status.ok());
    INFO(status.message());
    CHECK(status.error().code == code);
    CHECK(status.message().find(words) != std::string::npos);
  };
  refused(initialize(63), ErrorCode::badSlice, "63 bytes does not consist of bf16 values");
  refused(initialize(128), ErrorCode::badSlice, "");
  values[3] = 0x7fc0;
  refused(initialize(64), ErrorCode::nonFinite, "w");
  values[3] = 0x3f80;
  PSD_REQUIRE_OK(initialize(64));
  PSD_REQUIRE_OK(trainer.initialized());
  refused(trainer.push({}, dataOf(values, 63)), ErrorCode::badSlice, "63 bytes");
  refused(trainer.push({}, dataOf(values, 128)), ErrorCode::badSlice, "");
  values[5] = 0xff80;
  refused(trainer.push({}, dataOf(values, 64)), ErrorCode::nonFinite, "w");
  values[5] = 0x3f80;
  refused(trainer.push({.codec = "bf16", .count = 32}, dataOf(values, 64)), ErrorCode::invalidArgument,
          "codec 'bf16' was not agreed");
  PSD_REQUIRE_OK(trainer.push({}, dataOf(values, 64)));
  auto answer = trainer.peer().wait(trainer.startPull(1, 0, 0, 32).dropPipeline());
  REQUIRE(answer.isSlice());
  const auto pulled = wire::bytesIn(answer.getSlice().getValues());
  REQUIRE(pulled.size() == 64);
  CHECK(reinterpret_cast<const uint16_t*>(pulled.data())[31] == toBfloat16(0.5f));
}

TEST_CASE("Protocol: trainers of one model agree on its dtypes") {
  LocalServer server(config("locked"));
  auto io = kj::setupAsyncIo();
  const ModelSpec narrow{"m", {{"w", DType::bf16, {32}}}}, wide{"m", {{"w", DType::f32, {32}}}};
  const RawTrainer first(io, server, 0, 2, {.model = narrow});
  const Status refused = testing::tryToJoin(io, server, 1, 2, {.model = wide});
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::modelMismatch);
  CHECK(refused.message().find("w bf16[32]") != std::string::npos);
}

}  // namespace
}  // namespace psd::dtypes_test

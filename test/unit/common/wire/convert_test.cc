#include "common/wire/convert.h"

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <capnp/message.h>

#include "test/support/catch.h"

namespace psd::wire {
namespace {

const ModelSpec kModel{
    "mlp",
    {{"fc1.weight", DType::f32, {128, 784}}, {"fc1.bias", DType::f32, {128}}, {"scale", DType::f32, {}}}};

/// The error of readModel() for `kModel` as a message after `spoil` has changed it.
std::string modelRefusal(const std::function<void(schema::ModelSpec::Builder)>& spoil) {
  capnp::MallocMessageBuilder message;
  auto builder = message.initRoot<schema::ModelSpec>();
  writeModel(kModel, builder);
  spoil(builder);
  auto model = readModel(builder.asReader());
  REQUIRE_FALSE(model.ok());
  CHECK(model.error().code == ErrorCode::invalidArgument);
  return model.message();
}

/// The signature that a peer would compute for the defective model.
void sign(schema::ModelSpec::Builder builder) {
  ModelSpec model;
  for (auto tensor : builder.getTensors()) {
    TensorSpec spec{tensor.getName().cStr(), DType::f32, {}};
    for (uint64_t size : tensor.getShape()) spec.shape.push_back(size);
    model.tensors.push_back(spec);
  }
  builder.setSignature(model.signature());
}

TEST_CASE("a model survives the conversion") {
  capnp::MallocMessageBuilder message;
  auto builder = message.initRoot<schema::ModelSpec>();
  writeModel(kModel, builder);
  auto model = readModel(builder.asReader());
  PSD_REQUIRE_OK(model);
  CHECK(model->name == "mlp");
  CHECK(model->tensors == kModel.tensors);
  CHECK(builder.getSignature() == kModel.signature());
}

TEST_CASE("a partition carries the whole model, which must be valid") {
  ModelSpec part{"mlp", {{"fc1.weight[0:64]", DType::f32, {64, 784}}}, {}, {0, 2}};
  part.whole = std::make_shared<const std::vector<TensorSpec>>(kModel.tensors);
  capnp::MallocMessageBuilder message;
  auto builder = message.initRoot<schema::ModelSpec>();
  writeModel(part, builder);
  const auto model = readModel(builder.asReader());
  PSD_REQUIRE_OK(model);
  REQUIRE(model->whole);
  CHECK(*model->whole == kModel.tensors);
  builder.getWhole()[1].setName("fc1.weight");
  CHECK(readModel(builder.asReader()).message() == "tensor 'fc1.weight' appears twice in the model");
  builder.getWhole()[1].setName("fc1.bias");
  builder.getWhole()[1].initShape(65);
  CHECK(readModel(builder.asReader()).message() == "tensor 'fc1.bias' has more than 64 dimensions");
  CHECK(modelRefusal([](schema::ModelSpec::Builder whole) { whole.initWhole(1)[0].setName("w"); }) ==
        "a whole model is not a partition of another one");
}

TEST_CASE("an empty message is a model without tensors") {
  capnp::MallocMessageBuilder message;
  auto model = readModel(message.initRoot<schema::ModelSpec>().asReader());
  PSD_REQUIRE_OK(model);
  CHECK(model->tensors.empty());
}

TEST_CASE("a model with too many tensors or dimensions is rejected") {
  CHECK(modelRefusal([](auto model) { model.initTensors((1u << 17) + 1); }) ==
        "the model has 131073 tensors; the limit is 131072");
  CHECK(modelRefusal([](auto model) { model.getTensors()[1].initShape(65); }) ==
        "tensor 'fc1.bias' has more than 64 dimensions");
  CHECK(modelRefusal([](auto model) { model.getTensors()[1].initShape(50'000'000); }) ==
        "tensor 'fc1.bias' has more than 64 dimensions");
}

TEST_CASE("64 dimensions are accepted") {
  capnp::MallocMessageBuilder message;
  auto builder = message.initRoot<schema::ModelSpec>();
  const ModelSpec deep{"deep", {{"w", DType::f32, std::vector<uint64_t>(64, 1)}}};
  writeModel(deep, builder);
  auto model = readModel(builder.asReader());
  PSD_REQUIRE_OK(model);
  CHECK(model->tensors == deep.tensors);
}

TEST_CASE("a model with another one's signature is rejected") {
  const std::string wrong = "the model's signature does not match its tensors and tables";
  CHECK(modelRefusal([](auto model) { model.setSignature(model.getSignature() + 1); }) == wrong);
  CHECK(modelRefusal([](auto model) { model.getTensors()[1].setName("fc1.bios"); }) == wrong);
  CHECK(modelRefusal([](auto model) { model.getTensors()[0].getShape().set(0, 129); }) == wrong);
}

TEST_CASE("a model of hostile names and shapes is rejected in plain text") {
  auto named = [](const char* name) {
    return modelRefusal([=](auto model) {
      model.getTensors()[0].setName(name);
      sign(model);
    });
  };
  const std::string visible = " has a name with a character that is not visible ASCII: ";
  CHECK(named("caf\xc3\xa9") == "tensor 'caf\?\?'" + visible + "0xc3 at byte 3");
  CHECK(named("\x1b[31mred") == "tensor '?[31mred'" + visible + "0x1b at byte 0");
  CHECK(named("fc1\nweight") == "tensor 'fc1?weight'" + visible + "0x0a at byte 3");
  CHECK(named("") == "a tensor of the model has an empty name");
  CHECK(named("scale") == "tensor 'scale' appears twice in the model");
  CHECK(modelRefusal([](auto model) {
          model.getTensors()[0].setName("\x1b[31m");
          model.getTensors()[0].initShape(65);
        }) == "tensor '?[31m' has more than 64 dimensions");
  CHECK(modelRefusal([](auto model) {
          model.getTensors()[0].getShape().set(1, 0);
          sign(model);
        }) == "tensor 'fc1.weight' has a dimension of size 0");
  CHECK(modelRefusal([](auto model) {
          model.getTensors()[0].getShape().set(0, UINT64_MAX);
          sign(model);
        }) == "tensor 'fc1.weight' has more than 2^40 elements");
}

TEST_CASE("a dtype of a later version is rejected, not read as f32") {
  CHECK(modelRefusal([](auto model) { model.getTensors()[2].setDtype(static_cast<schema::DType>(3)); }) ==
        "tensor 'scale' has a dtype unknown to this version; a tensor is f32, bf16 or f16");
}

TEST_CASE("a model's own name is sanitized for logs") {
  capnp::MallocMessageBuilder message;
  auto builder = message.initRoot<schema::ModelSpec>();
  writeModel(kModel, builder);
  builder.setName("a\nb\x1b");
  auto model = readModel(builder.asReader());
  PSD_REQUIRE_OK(model);
  CHECK(model->name == "a?b?");
}

TEST_CASE("a plan survives the conversion") {
  for (const ShardPlan& plan : {ShardPlan::make(1000, 7), ShardPlan::make(3, 1)}) {
    capnp::MallocMessageBuilder message;
    auto list = message.initRoot<schema::ModelAccess>().initShards(static_cast<kj::uint>(plan.shards.size()));
    writePlan(plan, list);
    auto read = readPlan(list.asReader());
    PSD_REQUIRE_OK(read);
    CHECK(read->shards == plan.shards);
  }
}

TEST_CASE("a plan with gaps, overlaps or overflows is rejected") {
  auto refused = [](const std::vector<std::pair<uint64_t, uint64_t>>& ranges) {
    capnp::MallocMessageBuilder message;
    auto list = message.initRoot<schema::ModelAccess>().initShards(static_cast<kj::uint>(ranges.size()));
    for (kj::uint i = 0; i < list.size(); i++) {
      list[i].setBegin(ranges[i].first);
      list[i].setCount(ranges[i].second);
    }
    auto plan = readPlan(list.asReader());
    return !plan.ok() && plan.error().code == ErrorCode::invalidArgument;
  };
  CHECK_FALSE(refused({}));  // of a model with only tables
  CHECK(refused({{0, 0}}));
  CHECK(refused({{16, 16}}));
  CHECK(refused({{0, 16}, {32, 16}}));
  CHECK(refused({{0, 32}, {16, 16}}));
  CHECK(refused({{0, 8}, {8, 8}}));
  CHECK(refused({{0, 16}, {16, UINT64_MAX}}));
  CHECK_FALSE(refused({{0, 16}, {16, 3}}));
}

TEST_CASE("errors and statuses survive the conversion") {
  for (uint16_t code = 0; code <= static_cast<uint16_t>(ErrorCode::internal); code++) {
    capnp::MallocMessageBuilder message;
    auto builder = message.initRoot<schema::Acknowledgement>();
    writeStatus(Status(static_cast<ErrorCode>(code), "what is wrong"), builder);
    Status status = readStatus(builder.asReader());
    REQUIRE_FALSE(status.ok());
    CHECK(status.error().code == static_cast<ErrorCode>(code));
    CHECK(status.message() == "what is wrong");
  }
  capnp::MallocMessageBuilder message;
  auto builder = message.initRoot<schema::Acknowledgement>();
  writeStatus(Status(), builder);
  PSD_REQUIRE_OK(readStatus(builder.asReader()));
}

TEST_CASE("an error code of a later version reads as internal") {
  capnp::MallocMessageBuilder message;
  auto builder = message.initRoot<schema::Error>();
  builder.setMessage("new");
  for (uint16_t code : {15, 99, 65535}) {
    builder.setCode(static_cast<schema::ErrorCode>(code));
    const Error error = readError(builder.asReader());
    CHECK(error.code == ErrorCode::internal);
    CHECK(error.message == "new");
  }
}

TEST_CASE("floats are viewed in place, and only whole ones") {
  alignas(8) const kj::byte bytes[12] = {0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0, 0, 0, 0xc0, 0x7f};
  auto floats = floatsIn(capnp::Data::Reader(bytes, 12));
  PSD_REQUIRE_OK(floats);
  REQUIRE(floats->size() == 3);
  CHECK(static_cast<const void*>(floats->data()) == bytes);
  CHECK((*floats)[0] == 1.f);
  CHECK((*floats)[1] == -2.f);
  CHECK(std::isnan((*floats)[2]));
  auto none = floatsIn(capnp::Data::Reader(bytes, size_t{0}));
  PSD_REQUIRE_OK(none);
  CHECK(none->empty());
  for (size_t size : {1, 2, 3, 5, 11}) {
    auto odd = floatsIn(capnp::Data::Reader(bytes, size));
    REQUIRE_FALSE(odd.ok());
    CHECK(odd.error().code == ErrorCode::badSlice);
    CHECK(odd.message() ==
          "a slice of " + std::to_string(size) + " bytes does not consist of float32 values");
  }
}

TEST_CASE("referenced floats are in the message without a copy") {
  alignas(8) const float values[6] = {1, 2, 3, 4, 5, 0};  // the last one is only alignment space
  capnp::MallocMessageBuilder message;
  auto result = message.initRoot<schema::PullResult>();
  auto slice = result.initSlice();
  slice.adoptValues(referenceFloats(result, std::span(values, 5)));
  auto seen = slice.asReader().getValues();
  CHECK(static_cast<const void*>(seen.begin()) == values);
  CHECK(seen.size() == 5 * sizeof(float));
}

TEST_CASE("an error is sent as one line of bounded length") {
  capnp::MallocMessageBuilder message;
  auto out = message.initRoot<schema::Error>();
  writeError({ErrorCode::io, "two\nlines \xff"}, out);
  CHECK(readError(out.asReader()).message == "two?lines ?");
  writeError({ErrorCode::io, std::string(2 << 20, 'x')}, out);
  CHECK(readError(out.asReader()).message.size() < 5000);
}

}  // namespace
}  // namespace psd::wire

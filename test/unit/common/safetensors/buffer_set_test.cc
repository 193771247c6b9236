#include "common/safetensors/buffer_set.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "test/support/catch.h"
#include "test/support/memory_env.h"

namespace psd::buffer_set_test {
namespace {

using testing::MemoryEnv;

std::vector<std::byte> bytesOf(const std::string& text) {
  const auto* const begin = reinterpret_cast<const std::byte*>(text.data());
  return {begin, begin + text.size()};
}

/// The error for a file with this header and `dataBytes` bytes of data.
std::string refusalOf(const std::string& header, size_t dataBytes) {
  std::string file(sizeof(uint64_t), '\0');
  const uint64_t length = header.size();
  std::memcpy(file.data(), &length, sizeof length);
  const auto set = BufferSet::parse(bytesOf(file + header + std::string(dataBytes, '\0')));
  if (set.ok()) return "";
  CHECK(set.error().code == ErrorCode::invalidArgument);
  return set.message();
}

std::shared_ptr<const BufferSet> someBuffers() {
  const auto set = BufferSet::make(
      {{"flag", "BOOL", {3}, 0, 3}, {"count", "I64", {}, 3, 11}, {"half", "BF16", {1, 2}, 11, 15}},
      bytesOf("abc12345678wxyz"));
  PSD_REQUIRE_OK(set);
  return *set;
}

TEST_CASE("buffers: a file that is not complete and unambiguous is rejected with the reason") {
  CHECK(refusalOf("{}", 0).empty());
  CHECK(refusalOf(R"({"a":{"dtype":"F16","shape":[2,0],"data_offsets":[0,0]}})", 0).empty());
  CHECK(
      refusalOf("{}", 1) ==
      "the model's buffers are no safetensors file: its values have 1 bytes, and 0 bytes belong to buffers");
  CHECK(refusalOf(R"({"a":{"dtype":"F12","shape":[2],"data_offsets":[0,3]}})", 3) ==
        "buffer 'a' has the unknown dtype 'F12'");
  CHECK(refusalOf(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 2) ==
        "buffer 'a' does not begin where the values before it end");
  CHECK(refusalOf(R"({"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1)
            .starts_with("buffer '' has no name that a tensor may have: "));
  CHECK(refusalOf(R"({"a":{"dtype":"F64","shape":[2],"data_offsets":[0,8]}})", 8)
            .ends_with("tensor 'a': data_offsets do not match its shape"));
  CHECK(refusalOf("[]", 0).ends_with("its header is not a JSON object"));
  CHECK(refusalOf(std::string(5 << 20, ' '), 0)
            .ends_with("its header has 5242880 bytes; the limit is 4194304"));
  CHECK_FALSE(BufferSet::parse(bytesOf("1234567")).ok());
}

TEST_CASE("buffers: their names are none of the model's") {
  const auto buffers = someBuffers();
  PSD_REQUIRE_OK(buffers->checkNames({"m", {{"w", DType::f32, {1}}}}));
  CHECK(buffers->checkNames({"m", {{"half", DType::f32, {1}}}}).message() ==
        "buffer 'half' has the name of a tensor of the model");
  CHECK(buffers->checkNames({"m", {}, {{"flag", 1, {}}}}).message() ==
        "buffer 'flag' has the name of a table of the model");
  ModelSpec partition{"m", {{"w", DType::f32, {1}}}};
  partition.whole = std::make_shared<const std::vector<TensorSpec>>(
      std::vector<TensorSpec>{{"w", DType::f32, {1}}, {"count", DType::f32, {1}}});
  CHECK_FALSE(buffers->checkNames(partition).ok());
}

TEST_CASE("buffers: a file of a model has them beside its tensors, all aligned, and returns them") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const ModelSpec model{"m", {{"w", dtype, {3}}}};
  const std::vector<float> values = {1, 2, 3};
  MemoryEnv env;
  const auto written = someBuffers();
  auto file = env.create("/file");
  PSD_REQUIRE_OK(file);
  PSD_REQUIRE_OK(
      writeModelFile(**file, model, written.get(), [&](size_t, const auto& sink) { return sink(values); }));
  PSD_REQUIRE_OK((*file)->close());
  const auto reader = SafetensorsReader::open(env, "/file");
  PSD_REQUIRE_OK(reader);
  CHECK(reader->model().tensors == model.tensors);
  CHECK(reader->unread().empty());
  std::vector<float> read(3);
  PSD_REQUIRE_OK(reader->read(0, 0, read));
  CHECK(read == values);
  for (const SafetensorsEntry& buffer : reader->buffers())
    CHECK(buffer.begin % safetensorsElementBytes(buffer.dtype) == 0);
  const auto buffers = readBuffers(*reader);
  PSD_REQUIRE_OK(buffers);
  REQUIRE((*buffers)->entries().size() == 3);
  for (const SafetensorsEntry& before : written->entries()) {
    const auto& entries = (*buffers)->entries();
    const auto after = std::ranges::find(entries, before.name, &SafetensorsEntry::name);
    REQUIRE(after != entries.end());
    CHECK(after->toString() == before.toString());
    CHECK(std::ranges::equal((*buffers)->valuesOf(*after), written->valuesOf(before)));
  }
}

}  // namespace
}  // namespace psd::buffer_set_test

#include "common/safetensors/safetensors.h"

#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "test/support/catch.h"
#include "test/support/cpu_time.h"
#include "test/support/memory_env.h"
#include "test/support/random.h"
#include "test/support/temp_dir.h"

namespace psd::safetensors_test {
namespace {

using testing::growsLinearly;
using testing::MemoryEnv;
using testing::Random;
using testing::readFile;
using testing::TempDir;
using testing::writeFile;

using Values = std::vector<std::vector<float>>;

const ModelSpec kModel{"model",
                       {{"w", DType::f32, {2, 3}}, {"scale", DType::f32, {}}, {"b", DType::f32, {3}}}};
const Values kValues = {{1, 2, 3, 4, 5, 6}, {-0.f}, {1e-40f, 1e30f, std::numeric_limits<float>::infinity()}};

Status save(const std::string& path, const ModelSpec& model, const Values& values, size_t piece = 2) {
  auto env = makePosixEnv();
  PSD_ASSIGN_OR_RETURN(auto file, env->create(path));
  PSD_RETURN_IF_ERROR(writeSafetensors(
      *file, model, {{"format", "pt"}},
      [&](size_t tensor, const std::function<Status(std::span<const float>)>& sink) -> Status {
        std::span<const float> rest = values[tensor];
        while (!rest.empty()) {
          PSD_RETURN_IF_ERROR(sink(rest.first(std::min(piece, rest.size()))));
          rest = rest.subspan(std::min(piece, rest.size()));
        }
        return {};
      }));
  return file->close();
}

Result<SafetensorsReader> open(const std::string& path) {
  auto env = makePosixEnv();
  return SafetensorsReader::open(*env, path);
}

/// The bytes of a file with this header and `dataBytes` data bytes.
std::string fileOf(const std::string& header, size_t dataBytes) {
  uint64_t length = header.size();
  std::string text(sizeof length, '\0');
  std::memcpy(text.data(), &length, sizeof length);
  return text + header + std::string(dataBytes, '\0');
}

/// The error for a file of these bytes, without the prefix that names the file.
std::string refusalOf(const std::string& bytes) {
  const TempDir folder;
  const std::string path = folder.file("x.safetensors");
  writeFile(path, bytes);
  auto reader = open(path);
  REQUIRE_FALSE(reader.ok());
  CHECK(reader.error().code == ErrorCode::io);
  const std::string begin = "'" + path + "' is not a safetensors file that psd can read: ";
  REQUIRE(reader.message().substr(0, begin.size()) == begin);
  return reader.message().substr(begin.size());
}

std::string tensor(const std::string& shape, const std::string& offsets, const std::string& dtype = "F32") {
  return "{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
}

TEST_CASE("saved tensors are read back bit for bit") {
  const TempDir folder;
  PSD_REQUIRE_OK(save(folder.file("x"), kModel, kValues));
  auto reader = open(folder.file("x"));
  PSD_REQUIRE_OK(reader);
  CHECK(reader->model().tensors == kModel.tensors);
  CHECK(reader->model().name == folder.file("x"));
  for (size_t i = 0; i < kValues.size(); i++) {
    const auto index = reader->find(kModel.tensors[i].name);
    REQUIRE(index == i);
    std::vector<float> values(kValues[i].size());
    PSD_REQUIRE_OK(reader->read(*index, 0, values));
    CHECK(std::memcmp(values.data(), kValues[i].data(), values.size() * sizeof(float)) == 0);
  }
  CHECK_FALSE(reader->find("missing"));
  std::vector<float> part(2);
  PSD_REQUIRE_OK(reader->read(0, 3, part));
  CHECK(part == std::vector<float>{4, 5});
}

TEST_CASE("a file has the documented format: length, JSON header, data aligned to 8 bytes") {
  const TempDir folder;
  PSD_REQUIRE_OK(save(folder.file("x"), {"", {{"w", DType::f32, {2}}}}, {{1, 2}}));
  const std::string bytes = readFile(folder.file("x"));
  uint64_t header = 0;
  REQUIRE(bytes.size() > sizeof header);
  std::memcpy(&header, bytes.data(), sizeof header);
  CHECK(header % 8 == 0);
  REQUIRE(bytes.size() == 8 + header + 8);
  const std::string text = R"({"__metadata__":{"format":"pt"},"w":)" + tensor("[2]", "[0,8]") + "}";
  CHECK(bytes.substr(8, text.size()) == text);
  CHECK(bytes.substr(8 + text.size(), header - text.size()).find_first_not_of(' ') == std::string::npos);
  float values[2];
  std::memcpy(values, bytes.data() + 8 + header, sizeof values);
  CHECK(values[0] == 1);
  CHECK(values[1] == 2);
}

TEST_CASE("a source that yields too few or too many values is an error") {
  const TempDir folder;
  for (const Values& values : {Values{{1}}, Values{{1, 2, 3}}}) {
    Status status = save(folder.file("x"), {"", {{"w", DType::f32, {2}}}}, values);
    REQUIRE_FALSE(status.ok());
    CHECK(status.message() ==
          "tensor 'w': " + std::to_string(values[0].size()) + " elements to save instead of 2");
  }
}

TEST_CASE("tensors come in the order of their bytes, whatever the header's order") {
  const TempDir folder;
  writeFile(folder.file("x"),
            fileOf("{\"z\":" + tensor("[1]", "[8,12]") + ",\"a\":" + tensor("[2]", "[0,8]") + "}", 12));
  auto reader = open(folder.file("x"));
  PSD_REQUIRE_OK(reader);
  CHECK(reader->find("a") == size_t{0});
  CHECK(reader->find("z") == size_t{1});
}

TEST_CASE("a malformed file is rejected with the reason") {
  CHECK(refusalOf("") == "shorter than 8 bytes");
  CHECK(refusalOf("1234567") == "shorter than 8 bytes");
  const auto syntax = Catch::Matchers::StartsWith("its header, line 1, column ");
  CHECK_THAT(refusalOf(fileOf("", 8)), syntax);
  CHECK_THAT(refusalOf(fileOf("{", 0)), syntax);
  CHECK_THAT(refusalOf(fileOf("{\"caf\xe9\":" + tensor("[1]", "[0,4]") + "}", 4)), syntax);
  CHECK(refusalOf(fileOf("{\"w\":3}", 0)) == "its header is not a valid safetensors header");
  CHECK(refusalOf(fileOf("{\"w\":{}}", 0)) == "its header is not a valid safetensors header");
  CHECK(refusalOf(fileOf("[1]", 0)) == "its header is not a JSON object");
  CHECK(refusalOf(fileOf("{}", 0)) == "it holds no tensor");
  CHECK(
      refusalOf(fileOf("{\"w x\":" + tensor("[1]", "[0,4]") + "}", 4)) ==
      "tensor w x F32[1] is not read: tensor 'w x' has a name with a character that is not visible ASCII: a "
      "space at byte 1");
  CHECK(refusalOf(fileOf("{\"w\":" + tensor("[1]", "[0,4]") + ",\"w\":" + tensor("[1]", "[0,4]") + "}", 4)) ==
        "its header: w: appears twice");
}

TEST_CASE("tensors that no model can hold are skipped, and named if one is requested") {
  const TempDir folder;
  const std::string path = folder.file("x");
  writeFile(
      path,
      fileOf("{\"__metadata__\":{},\"position_ids\":" + tensor("[1,4]", "[0,32]", "I64") +
                 ",\"w\":" + tensor("[2]", "[32,40]") + ",\"half\":" + tensor("[2]", "[40,44]", "I16") +
                 ",\"scaled_fp8\":" + tensor("[0]", "[44,44]", "F8_E4M3") +
                 ",\"none\":" + tensor("[0,3]", "[36,36]") + ",\"flag\":" + tensor("[]", "[44,45]", "BOOL") +
                 ",\"a b\":" + tensor("[1]", "[45,49]") + ",\"odd\":" + tensor("[3]", "[49,51]", "F4") + "}",
             51));
  auto reader = open(path);
  PSD_REQUIRE_OK(reader);
  CHECK(reader->model().tensors == std::vector<TensorSpec>{{"w", DType::f32, {2}}});
  CHECK(reader->unread().size() == 7);
  CHECK(reader->describeUnread() ==
        "tensor position_ids I64[1,4] is not read: psd reads F32, BF16 and F16, tensor none F32[0,3] is not "
        "read: tensor 'none' has a dimension of size 0, tensor half I16[2] is not read: psd reads F32, BF16 "
        "and "
        "F16, and 4 more");
  CHECK(*reader->find(TensorSpec{"w", DType::f32, {2}}) == 0);
  const auto refusal = [&](const TensorSpec& wanted) {
    const auto found = reader->find(wanted);
    REQUIRE_FALSE(found.ok());
    CHECK(found.error().code == ErrorCode::modelMismatch);
    return found.message();
  };
  CHECK(refusal({"half", DType::f32, {2}}) ==
        "tensor half f32[2]: is half I16[2] in '" + path + "'; psd reads F32, BF16 and F16");
  CHECK(refusal({"w", DType::f32, {3}}) == "tensor w f32[3]: is w f32[2] in '" + path + "'");
  CHECK(refusal({"b", DType::f32, {3}}) == "tensor b f32[3]: not in '" + path + "'");
}

TEST_CASE("tensors of 16 bits are written rounded to nearest even, and read as float32") {
  const TempDir folder;
  const std::string path = folder.file("x");
  auto env = makePosixEnv();
  const ModelSpec model{"", {{"b", DType::bf16, {3}}, {"h", DType::f16, {3}}, {"f", DType::f32, {3}}}};
  const std::vector<float> values = {1.f + 3.f / 512, -1.f / 3, 65504.f};
  PSD_REQUIRE_OK(writeFileAtomically(*env, path, [&](WritableFile& file) {
    return writeSafetensors(file, model, {}, [&](size_t, const auto& sink) { return sink(values); });
  }));
  auto reader = open(path);
  PSD_REQUIRE_OK(reader);
  CHECK(reader->model().tensors == model.tensors);
  const std::vector<std::vector<float>> wanted = {
      {1.f + 1.f / 128, -0x1.56p-2f, 65536.f}, {1.f + 6.f / 1024, -0x1.554p-2f, 65504.f}, values};
  for (size_t i = 0; i < wanted.size(); i++) {
    std::vector<float> read(3);
    PSD_REQUIRE_OK(reader->read(i, 0, read));
    CHECK(read == wanted[i]);
    float last = 0;
    PSD_REQUIRE_OK(reader->read(i, 2, std::span(&last, 1)));
    CHECK(last == wanted[i][2]);
  }
  CHECK(*reader->find(TensorSpec{"b", DType::f32, {3}}) == 0);
}

TEST_CASE("a value beyond the range of f16 is not written, and its tensor is named") {
  const TempDir folder;
  auto env = makePosixEnv();
  const std::vector<float> values = {70000.f};
  const Status written = writeFileAtomically(*env, folder.file("x"), [&](WritableFile& file) {
    return writeSafetensors(file, {"", {{"scale", DType::f16, {1}}}}, {},
                            [&](size_t, const auto& sink) { return sink(values); });
  });
  REQUIRE_FALSE(written.ok());
  CHECK(written.error().code == ErrorCode::nonFinite);
  CHECK(written.message().find("tensor scale f16[1]: fp16: a value is beyond +-65504") != std::string::npos);
}

TEST_CASE("an absurd header length is rejected without allocating memory for it") {
  for (uint64_t length :
       {uint64_t{9}, uint64_t{100'000'001}, uint64_t{1} << 40, UINT64_MAX - 7, UINT64_MAX}) {
    INFO(length);
    std::string bytes(16, '{');
    std::memcpy(bytes.data(), &length, sizeof length);
    CHECK(refusalOf(bytes) == "its header length does not fit the file");
  }
}

TEST_CASE("a deeply nested header is rejected") {
  const std::string refusal = "its header: lists and objects are nested more than 100 deep";
  CHECK(refusalOf(fileOf(std::string(1'000'000, '['), 0)) == refusal);
  CHECK(refusalOf(fileOf("{\"w\":" + std::string(200'000, '[') + std::string(200'000, ']') + "}", 0)) ==
        refusal);
}

TEST_CASE("a tensor whose entry is wrong is rejected with its name") {
  auto refusal = [](const std::string& entry, size_t dataBytes) {
    return refusalOf(fileOf("{\"w\":" + entry + "}", dataBytes));
  };
  CHECK(refusal(tensor("[1]", "[0,8]", "F64"), 8) ==
        "tensor w F64[1] is not read: psd reads F32, BF16 and F16");
  const std::string outside = "tensor 'w': data_offsets lie outside the file";
  CHECK(refusal(tensor("[2]", "[0,8]"), 7) == outside);  // truncated
  CHECK(refusal(tensor("[2]", "[8,0]"), 8) == outside);
  CHECK(refusal(tensor("[2]", "[8]"), 8) == outside);
  CHECK(refusal(tensor("[2]", "[0,8,16]"), 16) == outside);
  CHECK(refusal(tensor("[2]", "[0,18446744073709551615]"), 8) == outside);
  const std::string shape = "tensor 'w': data_offsets do not match its shape";
  CHECK(refusal(tensor("[3]", "[0,8]"), 8) == shape);
  CHECK(refusal(tensor("[2]", "[0,9]"), 9) == shape);
  CHECK(refusal(tensor("[]", "[0,8]"), 8) == shape);
  CHECK(refusal(tensor("[4611686018427387906]", "[0,8]"), 8) == shape);
  CHECK(refusal(tensor("[4294967296,4294967296]", "[0,0]"), 0) == shape);
  CHECK(refusal(tensor("[2]", "[0,8]", "I64"), 8) == shape);
  CHECK(refusal(tensor("[0]", "[0,0]"), 0) ==
        "tensor w F32[0] is not read: tensor 'w' has a dimension of size 0");
}

TEST_CASE("sizes that are not integers are rejected") {
  for (const char* wrong : {"[-2]", "[2.5]", "[2.0]", "[true]", "[\"2\"]", "[null]", "2", "{}"}) {
    INFO(wrong);
    CHECK(refusalOf(fileOf("{\"w\":" + tensor(wrong, "[0,8]") + "}", 8)) ==
          "its header is not a valid safetensors header");
  }
  for (const char* wrong : {"[-1,8]", "[0.0,8.0]", "[false,8]", "8", "{}"}) {
    INFO(wrong);
    CHECK(refusalOf(fileOf("{\"w\":" + tensor("[2]", wrong) + "}", 8)) ==
          "its header is not a valid safetensors header");
  }
}

TEST_CASE("tensors that overlap are rejected") {
  CHECK(refusalOf(fileOf("{\"a\":" + tensor("[2]", "[0,8]") + ",\"b\":" + tensor("[2]", "[4,12]") + "}",
                         12)) == "tensors 'a' and 'b' overlap");
}

TEST_CASE("a missing file is an error of the system") {
  const TempDir folder;
  auto reader = open(folder.file("missing"));
  REQUIRE_FALSE(reader.ok());
  CHECK(reader.error().code == ErrorCode::io);
  CHECK_THAT(reader.message(), Catch::Contains(folder.file("missing")));
}

/// Changes, drops, duplicates or truncates a few bytes, mostly of the header.
std::string mutated(std::string bytes, Random& random) {
  for (uint64_t changes = random.between(1, 4); changes > 0 && !bytes.empty(); changes--) {
    const size_t at = random.below(random.oneIn(8) ? bytes.size() : std::min<size_t>(bytes.size(), 260));
    switch (random.below(5)) {
      case 0: bytes[at] = static_cast<char>(random.below(256)); break;
      case 1: bytes[at] = "0123456789,[]{}\":-.eE"[random.below(21)]; break;
      case 2: bytes.erase(at, random.between(1, 4)); break;
      case 3: bytes.insert(at, bytes.substr(at, random.between(1, 8))); break;
      case 4: bytes.resize(random.oneIn(4) ? at : bytes.size()); break;
    }
  }
  return bytes;
}

TEST_CASE("random damage to a file causes at most an error") {
  const TempDir folder;
  PSD_REQUIRE_OK(save(folder.file("valid"), kModel, kValues));
  const std::string valid = readFile(folder.file("valid"));
  MemoryEnv env;
  int opened = 0;
  for (uint64_t seed = 1; seed <= 3000; seed++) {
    INFO("seed " << seed);
    Random random(seed);
    env.put("/x", mutated(valid, random));
    auto reader = SafetensorsReader::open(env, "/x");
    if (!reader.ok()) {
      REQUIRE_FALSE(reader.message().empty());
      continue;
    }
    opened++;
    for (size_t i = 0; i < reader->model().tensors.size(); i++) {
      const uint64_t count = reader->model().tensors[i].elementCount();
      REQUIRE(count <= valid.size());  // a count beyond the file is never reported
      std::vector<float> values(count);
      PSD_REQUIRE_OK(reader->read(i, 0, values));
    }
  }
  CHECK(opened > 0);
  CHECK(opened < 3000);
}

// A linear search for each name took more than a minute.
TEST_CASE("the time to write and find many tensors grows linearly") {
  const TempDir folder;
  const auto writeAndFind = [&](size_t tensors) {
    const std::string path = folder.file("many.safetensors");
    ModelSpec model{"many", {}};
    for (size_t i = 0; i < tensors; i++) model.tensors.push_back({"t" + std::to_string(i), DType::f32, {1}});
    PSD_REQUIRE_OK(save(path, model, Values(tensors, {1.5f})));
    const auto reader = open(path);
    PSD_REQUIRE_OK(reader);
    CHECK(reader->model().tensors == model.tensors);
    for (size_t i = 0; i < tensors; i++) REQUIRE(reader->find(model.tensors[i].name) == i);
    CHECK(reader->find("t") == std::nullopt);
  };
  CHECK(growsLinearly(100'000, writeAndFind));
}

}  // namespace
}  // namespace psd::safetensors_test

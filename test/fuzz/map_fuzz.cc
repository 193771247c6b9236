// The file of --map, for tensors of several dtypes and shapes.

#include "common/safetensors/tensor_map.h"
#include "test/fuzz/fuzz_list.h"

namespace psd::fuzz {
namespace {
namespace map_fuzz {

void run(Bytes input) {
  const auto map = TensorMap::parse(textOf(input), "map.json");
  if (!map.ok()) {
    require(map.message().starts_with("map.json"), "an error names the file");
    return;
  }
  const std::vector<SafetensorsEntry> sources{
      {"l.0.q", "F32", {2, 3}, 0, 24},  {"l.0.k", "F32", {2, 3}, 24, 48}, {"l.1.q", "F32", {2, 3}, 48, 72},
      {"l.1.k", "F32", {2, 3}, 72, 96}, {"scale", "BF16", {}, 96, 98},    {"empty", "BF16", {4, 0}, 98, 98},
      {"odd", "?", {1}, 98, 99}};
  const std::vector<std::byte> data(99);
  const auto tensors = map->apply(sources);
  if (!tensors.ok()) {
    require(tensors.message().starts_with("map.json"), "an error names the file");
    return;
  }
  uint64_t at = 0;
  for (const MappedTensor& tensor : *tensors) {
    require(tensor.entry.begin == at, "a tensor follows the one before it");
    uint64_t bytes = safetensorsElementBytes(tensor.entry.dtype), passed = 0;
    for (const uint64_t extent : tensor.entry.shape) bytes *= extent;
    at = tensor.entry.end;
    const Status status = tensor.forEach(data, [&](std::span<const std::byte> part) {
      passed += part.size();
      return Status();
    });
    require(status.ok() && passed == at - tensor.entry.begin, "a tensor has its bytes");
    require(tensor.entry.dtype == "?" || bytes == passed, "a tensor has the bytes of its shape");
  }
}

std::vector<std::string> seeds() {
  return {
      R"({"tensors": {"l.{n}.qk": ["l.{n}.q", "l.{n}.k"]}})",
      R"({"others": "drop", "tensors": {"a": {"from": "l.0.q", "dim": 1, "begin": 1, "end": 3}, "b": "scale"}})",
      R"({"tensors": {"c": {"concat": ["l.0.q", {"from": "l.0.k", "end": 2}], "dim": 1}, "e": "empty"}})"};
}

}  // namespace map_fuzz
}  // namespace

const FuzzTarget kMapTarget{"map", "a map of tensors", map_fuzz::run, map_fuzz::seeds};

}  // namespace psd::fuzz

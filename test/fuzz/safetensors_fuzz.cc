// A safetensors file: model.file, a shard of a checkpoint.

#include "common/safetensors/safetensors.h"
#include "test/fuzz/fuzz_list.h"
#include "test/support/memory_env.h"

namespace psd::fuzz {
namespace {
namespace safetensors_fuzz {

void run(Bytes input) {
  testing::MemoryEnv env;
  env.put("/file", std::string(textOf(input)));
  const auto file = SafetensorsReader::open(env, "/file");
  if (!file.ok()) {
    require(file.message().starts_with("'/file'"), "an error names the file");
    return;
  }
  for (size_t i = 0; i < file->model().tensors.size(); i++) {
    const TensorSpec& tensor = file->model().tensors[i];
    require(file->find(tensor.name) == i, "a tensor is found by its name");
    std::vector<float> values(tensor.elementCount());  // as many as the file holds
    require(file->read(i, 0, values).ok(), "a tensor that was accepted can be read");
  }
}

std::vector<std::string> seeds() {
  testing::MemoryEnv env;
  const ModelSpec model{"m", {{"fc.weight", DType::f32, {3, 5}}, {"scale", DType::f32, {}}}};
  const auto written = writeFileAtomically(env, "/file", [&](WritableFile& file) {
    return writeSafetensors(file, model, {{"format", "pt"}},
                            [&](size_t tensor, const std::function<Status(std::span<const float>)>& sink) {
                              return sink(std::vector<float>(model.tensors[tensor].elementCount(), 0.5f));
                            });
  });
  require(written.ok(), "a file is written");
  return {env.bytes("/file")};
}

}  // namespace safetensors_fuzz
}  // namespace

const FuzzTarget kSafetensorsTarget{"safetensors", "a safetensors file", safetensors_fuzz::run,
                                    safetensors_fuzz::seeds};

}  // namespace psd::fuzz

#include "server/tools/placement_command.h"

#include <cstdio>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/config/json_file.h"
#include "common/plan/model_partitions.h"
#include "common/safetensors/safetensors.h"
#include "common/text/quantity.h"
#include "common/text/text.h"
#include "server/checkpoint/checkpoint_folder.h"
#include "server/tools/saved_files.h"

namespace psd {
namespace {

using Json = nlohmann::ordered_json;

Result<ModelSpec> modelAt(Env& env, const std::string& path) {
  PSD_RETURN_IF_ERROR(checkExists(env, path));
  PSD_ASSIGN_OR_RETURN(const bool checkpoint, isCheckpoint(env, path));
  if (checkpoint) {
    PSD_ASSIGN_OR_RETURN(const Checkpoint opened, openCheckpoint(env, path));
    return opened.manifest.model;
  }
  if (!env.list(path).ok()) {
    PSD_ASSIGN_OR_RETURN(const SafetensorsReader file, SafetensorsReader::open(env, path));
    return file.model();
  }
  PSD_ASSIGN_OR_RETURN(const std::vector<uint64_t> numbers, listCheckpoints(env, path, true));
  if (numbers.empty()) return noCheckpointIn(path);
  PSD_ASSIGN_OR_RETURN(const Checkpoint newest, openCheckpoint(env, checkpointPath(path, numbers.back())));
  return newest.manifest.model;
}

std::string describe(size_t daemon, const ModelPartition& partition) {
  std::vector<std::string> names;
  for (const TensorSpec& tensor : partition.spec.tensors) names.push_back(tensor.name);
  const uint64_t parameters = partition.spec.parameterCount();
  return fmt::format("daemon {:<4} {} parameters, {}: {}\n", daemon, parameters,
                     bytesText(parameters * sizeof(float)), joined(names, ", "));
}

Json asJson(const ModelPartition& partition) {
  Json tensors = Json::array();
  for (const TensorSpec& tensor : partition.spec.tensors) {
    tensors.push_back({{"name", tensor.name}, {"shape", tensor.shape}});
  }
  return {{"parameters", partition.spec.parameterCount()},
          {"bytes", partition.spec.parameterCount() * sizeof(float)},
          {"tensors", std::move(tensors)}};
}

}  // namespace

Status printPlacement(Env& env, const std::string& path, uint32_t daemons, bool json) {
  PSD_ASSIGN_OR_RETURN(const ModelSpec model, modelAt(env, path));
  if (!model.partition.isWhole()) {
    return {ErrorCode::invalidArgument,
            fmt::format("'{}' is {}; expected a whole model, as psd export --server writes it", path,
                        model.partition.toString())};
  }
  PSD_ASSIGN_OR_RETURN(const std::vector<ModelPartition> partitions, partitionModel(model, daemons));
  if (json) {
    Json document = {
        {"model", model.name}, {"parameters", model.parameterCount()}, {"daemons", Json::array()}};
    for (const ModelPartition& partition : partitions) document["daemons"].push_back(asJson(partition));
    std::puts(jsonText(document, 2).c_str());
    return {};
  }
  std::string text = fmt::format("model       {}, {} parameters in {} tensors\n", model.name,
                                 model.parameterCount(), model.tensors.size());
  for (size_t i = 0; i < partitions.size(); i++) text += describe(i, partitions[i]);
  for (const TableSpec& table : model.tables) {
    text += fmt::format("table       {}: one in {} of its rows on each daemon\n", table.name, daemons);
  }
  std::fputs(text.c_str(), stdout);
  return {};
}

}  // namespace psd

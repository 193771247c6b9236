#include "trainer/executor/model_devices.h"

#include <algorithm>
#include <utility>

#include <spdlog/spdlog.h>

#include "trainer/model/device.h"
#include "trainer/model/model_list.h"

namespace psd {
namespace {

constexpr std::string_view kAuto = "auto";

bool hasAutoDevice(const ExecutorConfig& config) {
  return config.device == kAuto || std::ranges::count(config.stages, kAuto, &StageConfig::device) > 0;
}

bool isOnCpu(const ExecutionOptions& options) {
  return options.device.isCpu() &&
         std::ranges::all_of(options.stages, [](const StageBegin& stage) { return stage.device.isCpu(); });
}

Result<Device> chooseHere(std::string_view request, std::string& note) {
  return chooseDevice(request, 0, note);
}

Result<Device> chooseWithCpuForAuto(std::string_view request, std::string& note) {
  return chooseHere(request == kAuto ? "cpu" : request, note);
}

}  // namespace

Result<ExecutionOptions> placeModel(const ExecutorConfig& config, const DeviceChoice& choose,
                                    std::string& note) {
  const auto at = [&](const std::string& path, std::string_view request) -> Result<Device> {
    if (request == kAuto && config.weights == WeightsMode::live) return Device();
    auto device = choose(request, note);
    if (!device.ok()) return Error{device.error().code, path + ": " + device.message()};
    return device;
  };
  ExecutionOptions options;
  options.microBatches = config.microBatches;
  options.threads = config.threadsPerWorker;
  PSD_ASSIGN_OR_RETURN(options.device, at("device", config.device));
  for (size_t i = 0; i < config.stages.size(); i++) {
    const StageConfig& stage = config.stages[i];
    PSD_ASSIGN_OR_RETURN(const Device device, at("stages[" + std::to_string(i) + "].device", stage.device));
    options.stages.push_back({stage.layer, device});
  }
  return options;
}

Result<std::unique_ptr<ExecutionModel>> buildModel(const ExecutorConfig& config) {
  const auto wrong = [](const Error& error) {
    if (error.message.starts_with("stages")) return error;
    const bool isModuleError = error.code == ErrorCode::invalidArgument;
    return Error{error.code, (isModuleError ? "module: " : "device: ") + error.message};
  };
  std::string note;
  PSD_ASSIGN_OR_RETURN(const ExecutionOptions options, placeModel(config, chooseHere, note));
  if (!note.empty()) spdlog::warn("{}", note);
  const auto choice = chooseModel(config.module, kExecutableModels);
  if (!choice.ok()) return wrong(choice.error());
  auto model = makeExecutionModel(*choice, config.seed, options);
  if (model.ok()) return model;
  const bool isModuleError = model.error().code == ErrorCode::invalidArgument;
  if (isModuleError || isOnCpu(options) || !hasAutoDevice(config)) return wrong(model.error());
  PSD_ASSIGN_OR_RETURN(const ExecutionOptions others, placeModel(config, chooseWithCpuForAuto, note));
  auto onCpu = makeExecutionModel(*choice, config.seed, others);
  if (!onCpu.ok()) return wrong(onCpu.error());  // an explicitly named device is unusable, too
  spdlog::warn("{}; using the CPU", model.message());
  return onCpu;
}

}  // namespace psd

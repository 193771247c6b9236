#include "trainer/cli/setup.h"

#include <string>

#include <spdlog/spdlog.h>

#include "trainer/dataset/dataset_list.h"
#include "trainer/loop/progress.h"
#include "trainer/model/device.h"
#include "trainer/model/model_list.h"

namespace psd {
namespace {

Error prefixed(const char* flag, const Error& error) {
  return {error.code, std::string(flag) + ": " + error.message};
}

/// Logs how far the lines of files have been checked. Not the end, if that took less than a moment.
void logReading(const ReadProgress& progress) {
  constexpr double kMomentSeconds = 1;
  if (!progress.done || progress.seconds > kMomentSeconds) spdlog::info("{}", formatReading(progress));
  if (!progress.done || progress.badLines == 0) return;
  spdlog::warn("--bad-lines: skipped {} malformed line(s), the first is {}", progress.badLines,
               progress.firstBadLine);
}

}  // namespace

Result<std::unique_ptr<Dataset>> openData(const CommonOptions& options, Split split) {
  auto dataset = openDataset(options.data, split,
                             {.seed = options.seed, .badLines = options.badLines, .onProgress = logReading});
  if (!dataset.ok()) return prefixed("--data", dataset.error());
  return dataset;
}

Result<std::unique_ptr<Model>> buildModel(const CommonOptions& options) {
  const Result<ModelChoice> choice = chooseModel(options.model);
  if (!choice.ok()) return prefixed("--model", choice.error());
  std::string note;
  const auto device = chooseDevice(options.device, options.placement.localRank, note);
  if (!device.ok()) return prefixed("--device", device.error());
  if (!note.empty()) spdlog::warn("{}", note);
  const auto dtype = parseDType(options.dtype);
  if (!dtype.ok()) return prefixed("--dtype", dtype.error());
  ModelOptions model{options.seed, options.placement.rank, device.value(), options.threads, *dtype};
  auto made = makeModel(*choice, model);
  if (made.ok()) return made;
  if (made.error().code == ErrorCode::invalidArgument) return prefixed("--model", made.error());
  if (model.device.isCpu() || options.device != "auto") return made;
  spdlog::warn("{}; using the CPU", made.message());
  model.device = Device{};
  return makeModel(*choice, model);
}

}  // namespace psd

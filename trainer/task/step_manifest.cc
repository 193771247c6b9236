#include "trainer/task/step_manifest.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>

#include <fmt/format.h>
#include <sys/utsname.h>

#include "common/config/json_file.h"
#include "common/config/object_reader.h"
#include "common/text/text.h"

namespace psd {
namespace {

constexpr uint64_t kFormat = 1;
constexpr uint64_t kExtentMax = uint64_t{1} << 40;

void readTensors(ObjectReader root, StepManifest& manifest) {
  ObjectReader tensors = root.object("parameters");
  for (const std::string& name : tensors.keys()) {
    TensorSpec tensor{name, DType::f32, tensors.integers(name, {})};
    if (std::ranges::any_of(tensor.shape,
                            [](uint64_t extent) { return extent == 0 || extent > kExtentMax; })) {
      tensors.fail(name, "must be a shape: extents above 0");
    }
    manifest.tensors.push_back(std::move(tensor));
  }
  if (manifest.tensors.empty()) root.fail("parameters", "must name at least one, with its shape");
}

void readChecksums(ObjectReader root, StepManifest& manifest) {
  ObjectReader checksums = root.object("crc32");
  for (const std::string& name : checksums.keys()) {
    manifest.checksums[name] =
        static_cast<uint32_t>(checksums.integer(name, 0, 0, std::numeric_limits<uint32_t>::max()));
  }
}

}  // namespace

Processor Processor::here() {
  Processor processor;
  utsname names{};
  if (uname(&names) == 0) processor.machine = names.machine;
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("flags") && !line.starts_with("Features")) continue;
    std::istringstream words(line.substr(std::min(line.find(':'), line.size() - 1) + 1));
    for (std::string word; words >> word;) processor.features.push_back(word);
    break;
  }
  return processor;
}

Status StepManifest::checkRunsOn(std::string_view torchRelease, const Processor& here) const {
  const auto wrong = [](std::string what) { return Status(ErrorCode::invalidArgument, std::move(what)); };
  if (torch != torchRelease) {
    return wrong(fmt::format(
        "was compiled for LibTorch {}, and this program has {}; expected one exported with that release",
        printable(torch, 40), torchRelease));
  }
  if (processor.machine != here.machine) {
    return wrong(
        fmt::format("was compiled for {}, and this machine is {}; expected one exported on such a machine",
                    printable(processor.machine, 40), here.machine));
  }
  std::vector<std::string> missing;
  for (const std::string& feature : processor.features) {
    if (std::ranges::count(here.features, feature) == 0) missing.push_back(printable(feature, 40));
  }
  if (missing.empty()) return {};
  return wrong(
      fmt::format("was compiled for a CPU with {}, which this one lacks; expected one exported on "
                  "this machine, or on an older one",
                  joined(missing, ", ")));
}

Result<StepManifest> readStepManifest(std::string_view json, const std::string& origin) {
  PSD_ASSIGN_OR_RETURN(auto document, parseJson(json, origin));
  const auto bad = [&](const std::string& what) {
    return Error{ErrorCode::invalidArgument, origin + ": " + what};
  };
  ObjectReader root(std::move(document));
  StepManifest manifest;
  const uint64_t format = root.integer("format", 0, 1, std::numeric_limits<uint32_t>::max());
  if (format > kFormat) {  // its other keys are unknown
    return bad(fmt::format("format {} is from a later psd; expected {}", format, kFormat));
  }
  if (format == 0) root.fail("format", fmt::format("is missing; expected {}", kFormat));
  manifest.torch = root.text("torch", "");
  manifest.processor = {root.text("machine", ""), root.texts("cpu", {})};
  readTensors(root, manifest);
  manifest.outputs = root.texts("outputs", {});
  readChecksums(root, manifest);
  const Status read = root.finish();
  if (!read.ok()) return bad(read.message());
  return manifest;
}

}  // namespace psd

#include "trainer/model/step_package.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include <c10/util/Exception.h>
#include <caffe2/serialize/inline_container.h>
#include <torch/csrc/inductor/aoti_runner/model_container_runner_cpu.h>
#include <torch/utils.h>
#include <torch/version.h>
#include <zlib.h>

#include "trainer/model/own_model.h"

namespace psd {
namespace {

constexpr const char* kManifestFile = "psd_step.json";
constexpr const char* kValues = "extra/psd_values";
constexpr const char* kGraphs = "data/aotinductor/";
constexpr std::string_view kLibrary = ".so", kSource = ".cpp";

std::string extra(const char* name) { return std::string("extra/") + name; }

/// The first sentence of an exception's message, without LibTorch's backtrace.
std::string firstSentence(const std::exception& exception) {
  const auto* torchError = dynamic_cast<const c10::Error*>(&exception);
  const std::string why = torchError ? torchError->what_without_backtrace() : exception.what();
  return why.substr(0, std::min(why.find('\n'), why.find(". ")));
}

/// A temporary folder, which the destructor removes with its contents.
class ScratchFolder {
 public:
  ScratchFolder() {
    const char* const given = std::getenv("TMPDIR");
    const std::string parent = given != nullptr && *given != 0 ? given : "/tmp";
    std::string pattern = (std::filesystem::path(parent) / "psd-step-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) {
      throw NetworkError("no folder can be created in " + quotedPath(parent) + ": " +
                         std::string(std::strerror(errno)) + "; TMPDIR selects another folder");
    }
    path_ = pattern;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  std::string write(const std::string& name, const std::string& content) const {
    const std::string path = path_ / name;
    std::ofstream file(path, std::ios::binary);
    file << content << std::flush;
    if (!file) throw NetworkError(quotedPath(path) + " cannot be written; is TMPDIR full?");
    return path;
  }

 private:
  std::filesystem::path path_;
};

/// The CPU runner takes a path and also reads the files next to the library that name its operators.
std::unique_ptr<torch::inductor::AOTIModelContainerRunner> openLibrary(const std::string& library) {
  try {
    return std::make_unique<torch::inductor::AOTIModelContainerRunnerCpu>(library);
  } catch (const std::exception& exception) {
    throw NetworkError("its code cannot be loaded: " + firstSentence(exception) +
                       " (TMPDIR, or /tmp, must not be mounted noexec)");
  }
}

}  // namespace

CompiledGraph::CompiledGraph(std::string name,
                             std::unique_ptr<torch::inductor::AOTIModelContainerRunner> runner)
    : name_(std::move(name)), runner_(std::move(runner)) {}
CompiledGraph::CompiledGraph(CompiledGraph&&) noexcept = default;
CompiledGraph::~CompiledGraph() = default;

std::vector<torch::Tensor> CompiledGraph::run(const std::vector<torch::Tensor>& inputs,
                                              size_t outputs) const {
  std::vector<torch::Tensor> computed;
  try {
    computed = runner_->run(inputs);
  } catch (const std::exception& exception) {
    throw NetworkError("the compiled " + name_ + " failed: " + firstSentence(exception));
  }
  if (computed.size() != outputs) {
    throw NetworkError("the compiled " + name_ + " gave " + std::to_string(computed.size()) +
                       " tensors; expected " + std::to_string(outputs));
  }
  return computed;
}

StepPackage::StepPackage(const std::string& path) : path_(path) {
  requireFile(path);
  try {
    reader_ = std::make_unique<caffe2::serialize::PyTorchStreamReader>(path);
  } catch (const std::exception& exception) {
    throw NetworkError(quotedPath(path) +
                       " is not a package of a compiled step, which scripts/export_model writes: " +
                       firstSentence(exception));
  }
  const std::vector<std::string> all = records();
  for (const char* name : {kManifestFile, kDeclarationFile}) {
    if (std::ranges::count(all, extra(name)) > 0) continue;
    throw NetworkError(quotedPath(path) + " holds no " + name +
                       ", which says what it takes and gives; scripts/export_model writes one");
  }
  auto manifest = readStepManifest(read(extra(kManifestFile)), quotedPath(path) + ": " + kManifestFile);
  if (!manifest.ok()) throw NetworkError(manifest.message());
  manifest_ = *std::move(manifest);
  const Status runs = manifest_.checkRunsOn(TORCH_VERSION, Processor::here());
  if (!runs.ok()) throw NetworkError(quotedPath(path) + " " + runs.message());
  auto declaration =
      readDeclaration(readChecked(extra(kDeclarationFile)), quotedPath(path) + ": " + kDeclarationFile);
  if (!declaration.ok()) throw NetworkError(declaration.message());
  declaration_ = *std::move(declaration);
  for (const ColumnSpec& column : declaration_.columns) {
    if (std::ranges::count(column.shape, ColumnSpec::kAny) == 0) continue;
    throw NetworkError(quotedPath(path) + ": " + kDeclarationFile + ": columns." +
                       printable(column.name, 60) + ": a compiled step takes no extent of any length");
  }
  readValues();
}

StepPackage::~StepPackage() = default;

std::vector<std::string> StepPackage::records() const {
  try {
    return reader_->getAllRecords();
  } catch (const std::exception& exception) {
    throw NetworkError(quotedPath(path_) + " is damaged: " + firstSentence(exception));
  }
}

std::string StepPackage::read(const std::string& record) const {
  try {
    const auto [data, size] = reader_->getRecord(record);
    return {static_cast<const char*>(data.get()), size};
  } catch (const std::exception& exception) {
    throw NetworkError(quotedPath(path_) + " holds '" + printable(record) +
                       "', which is unreadable: " + firstSentence(exception));
  }
}

std::string StepPackage::readChecked(const std::string& record) const {
  std::string content = read(record);
  const auto found = manifest_.checksums.find(record);
  const auto* const bytes = reinterpret_cast<const Bytef*>(content.data());
  if (found == manifest_.checksums.end() || crc32_z(0, bytes, content.size()) != found->second) {
    throw NetworkError(quotedPath(path_) + " is damaged: '" + printable(record) +
                       "' is not what was exported");
  }
  return content;
}

void StepPackage::readValues() {
  const Status valid = validateModel({"step", manifest_.tensors, {}});
  if (!valid.ok()) throw NetworkError(quotedPath(path_) + ": " + kManifestFile + ": " + valid.message());
  uint64_t count = 0;
  for (const TensorSpec& tensor : manifest_.tensors) count += tensor.elementCount();
  const std::string bytes = reader_->hasRecord(kValues) ? readChecked(kValues) : "";
  if (bytes.size() != count * sizeof(float)) {
    throw NetworkError(quotedPath(path_) + " holds " + std::to_string(bytes.size()) +
                       " bytes of values; expected " + std::to_string(count * sizeof(float)));
  }
  values_ = torch::empty({static_cast<int64_t>(count)});
  std::memcpy(values_.data_ptr<float>(), bytes.data(), bytes.size());
  if (!at::isfinite(values_).all().item<bool>()) {
    throw NetworkError(quotedPath(path_) + " has parameters that hold NaN or infinity");
  }
}

CompiledGraph StepPackage::load(std::string_view graph) const {
  const std::string prefix = kGraphs + std::string(graph) + "/";
  const ScratchFolder folder;  // loaded code does not need its file
  std::string library;
  for (const std::string& record : records()) {
    if (!record.starts_with(prefix) || record.ends_with(kSource)) continue;
    const std::string name = record.substr(prefix.size());
    if (name.find('/') != std::string::npos) continue;
    const std::string path = folder.write(name, readChecked(record));
    if (name.ends_with(kLibrary)) library = path;
  }
  if (library.empty()) throw NetworkError(quotedPath(path_) + " holds no compiled " + std::string(graph));
  return withFileName(path_, [&] { return CompiledGraph(std::string(graph), openLibrary(library)); });
}

}  // namespace psd

#include "trainer/dataset/mnist.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "trainer/dataset/idx_file.h"

namespace psd {
namespace {

namespace fs = std::filesystem;

constexpr uint32_t kSide = 28;
constexpr uint32_t kDigits = 10;
constexpr const char* kExpected =
    "a folder with train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and "
    "t10k-labels-idx1-ubyte, plain or .gz";

/// Path of the plain file, else of the .gz file.
Result<std::string> locate(const std::string& folder, const std::string& name) {
  std::error_code ignored;
  for (const char* suffix : {"", ".gz"}) {
    const std::string path = (fs::path(folder) / (name + suffix)).string();
    if (fs::is_regular_file(path, ignored)) return path;
  }
  return Error{ErrorCode::io,
               folder + ": neither " + name + " nor " + name + ".gz is there; expected " + kExpected};
}

Status checkImages(const IdxFile& file) {
  const auto& shape = file.dimensions;
  if (shape[1] != kSide || shape[2] != kSide) {
    return {ErrorCode::io, file.path + ": images of " + std::to_string(shape[1]) + "x" +
                               std::to_string(shape[2]) + " pixels; expected 28x28"};
  }
  if (shape[0] == 0) {
    return {ErrorCode::io, file.path + ": holds no images; expected at least one"};
  }
  return {};
}

Status checkLabels(const IdxFile& labels, const IdxFile& images) {
  if (labels.dimensions[0] != images.dimensions[0]) {
    return {ErrorCode::io, labels.path + ": " + std::to_string(labels.dimensions[0]) + " labels for the " +
                               std::to_string(images.dimensions[0]) + " images in " + images.path +
                               "; expected one label per image"};
  }
  const auto bad =
      std::find_if(labels.bytes.begin(), labels.bytes.end(), [](uint8_t label) { return label >= kDigits; });
  if (bad != labels.bytes.end()) {
    return {ErrorCode::io, labels.path + ": label " + std::to_string(*bad) + " at index " +
                               std::to_string(bad - labels.bytes.begin()) + "; expected 0 to 9"};
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Dataset>> openMnist(const std::string& folder, Split split) {
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored)) {
    return Error{ErrorCode::io, folder + ": no such folder; expected " + kExpected};
  }
  const std::string prefix = split == Split::train ? "train" : "t10k";
  PSD_ASSIGN_OR_RETURN(const auto imagePath, locate(folder, prefix + "-images-idx3-ubyte"));
  PSD_ASSIGN_OR_RETURN(const auto labelPath, locate(folder, prefix + "-labels-idx1-ubyte"));
  PSD_ASSIGN_OR_RETURN(auto images, readIdxFile(imagePath, 3));
  PSD_RETURN_IF_ERROR(checkImages(images));
  PSD_ASSIGN_OR_RETURN(auto labels, readIdxFile(labelPath, 1));
  PSD_RETURN_IF_ERROR(checkLabels(labels, images));
  std::string description = std::to_string(labels.bytes.size()) + " images from " + folder;
  return std::unique_ptr<Dataset>(
      std::make_unique<ByteImages>(ImageShape{1, kSide, kSide}, kDigits, std::move(images.bytes),
                                   std::move(labels.bytes), std::move(description)));
}

}  // namespace psd

#include "trainer/dataset/dataset_list.h"

#include <algorithm>
#include <filesystem>
#include <iterator>

#include "common/text/number.h"
#include "common/text/text.h"
#include "trainer/dataset/clicks.h"
#include "trainer/dataset/documents.h"
#include "trainer/dataset/file_samples.h"
#include "trainer/dataset/mnist.h"
#include "trainer/dataset/movielens.h"
#include "trainer/dataset/ratings.h"
#include "trainer/dataset/sparse_files.h"
#include "trainer/dataset/synthetic.h"
#include "trainer/dataset/text.h"

namespace psd {
namespace {

Result<std::unique_ptr<Dataset>> openMnistEntry(const std::string& folder, Split split,
                                                const DatasetOptions&) {
  if (folder.empty()) {
    return Error{ErrorCode::invalidArgument, "mnist: missing folder; expected mnist:DIR"};
  }
  return openMnist(folder, split);
}

Result<std::unique_ptr<Dataset>> openSyntheticEntry(const std::string& samples, Split split,
                                                    const DatasetOptions& options) {
  uint32_t count = kSyntheticSamplesDefault;
  if (!samples.empty()) {
    count = toNumber<uint32_t>(samples).value_or(0);
    if (count < 1 || count > kSyntheticSamplesMax) {
      return Error{ErrorCode::invalidArgument, "synthetic:" + samples +
                                                   ": the number of images is not a whole number from 1 to " +
                                                   std::to_string(kSyntheticSamplesMax)};
    }
  }
  return makeSynthetic(count, split, options.seed);
}

Result<std::unique_ptr<Dataset>> openTextEntry(const std::string& argument, Split split,
                                               const DatasetOptions&) {
  return openText(argument, split);
}

Result<std::unique_ptr<Dataset>> openMovielensEntry(const std::string& folder, Split split,
                                                    const DatasetOptions&) {
  if (folder.empty()) {
    return Error{ErrorCode::invalidArgument, "movielens: missing folder; expected movielens:DIR"};
  }
  return openMovielens(folder, split);
}

Result<std::unique_ptr<Dataset>> openFilesEntry(const std::string& files, Split split,
                                                const DatasetOptions&) {
  return openFiles(files, split);
}

/// An entry that only needs the seed.
template <Result<std::unique_ptr<Dataset>> (*kOpen)(const std::string&, Split, uint64_t)>
Result<std::unique_ptr<Dataset>> openSeeded(const std::string& argument, Split split,
                                            const DatasetOptions& options) {
  return kOpen(argument, split, options.seed);
}

constexpr DatasetEntry kDatasets[] = {
    {"mnist", "DIR or mnist:DIR, a folder with the MNIST files", openMnistEntry},
    {"synthetic", "synthetic[:N], N synthetic training images", openSyntheticEntry},
    {"text", "text:FILE[:level=word|char,vocabulary=10000,length=32], a text in UTF-8", openTextEntry},
    {"movielens", "movielens:DIR, a folder with MovieLens's ratings.csv", openMovielensEntry},
    {"ratings", "ratings[:samples=100000,users=2000,items=1000,noise=0.3], synthetic ratings",
     openSeeded<openRatings>},
    {"clicks", "clicks[:samples=200000,scale=100], synthetic clicks", openSeeded<openClicks>},
    {"documents", "documents[:samples=50000,words=47236,length=76,noise=0.3], synthetic documents",
     openSeeded<openDocuments>},
    {"libsvm", "libsvm:FILES[:test=FILES], sparse examples as label id:value id:value…", openLibsvm,
     /*skipsBadLines=*/true},
    {"criteo", "criteo:FILES[:test=FILES], click logs of 13 numbers and 26 categories, separated by tabs",
     openCriteo, /*skipsBadLines=*/true},
    {"files", "FILE.safetensors, FILE.csv or A.npy,B.npy[:test=FILES], columns of your own", openFilesEntry},
};

/// The entry that `data` names; null: files by their suffix, or a folder.
const DatasetEntry* entryOf(const std::string& data) {
  const size_t colon = data.find(':');
  const std::string name = data.substr(0, colon);
  std::error_code ignored;
  if (colon == std::string::npos && std::filesystem::exists(name, ignored)) return nullptr;
  const auto entry = std::ranges::find(kDatasets, name, &DatasetEntry::name);
  return entry == std::end(kDatasets) ? nullptr : &*entry;
}

}  // namespace

std::span<const DatasetEntry> datasetList() { return kDatasets; }

Result<std::unique_ptr<Dataset>> openDataset(const std::string& data, Split split,
                                             const DatasetOptions& options) {
  const size_t colon = data.find(':');
  const DatasetEntry* const entry = entryOf(data);
  if (options.badLines != 0 && (entry == nullptr || !entry->skipsBadLines)) {
    return Error{ErrorCode::invalidArgument, "--bad-lines applies only to libsvm and criteo"};
  }
  if (entry != nullptr) {
    return entry->open(colon == std::string::npos ? std::string() : data.substr(colon + 1), split, options);
  }
  std::error_code ignored;
  if (hasFileSuffix(data) && !std::filesystem::is_directory(data, ignored)) return openFiles(data, split);
  if (!std::filesystem::exists(data, ignored)) {
    std::vector<std::string_view> names;
    for (const DatasetEntry& entry : kDatasets) names.push_back(entry.name);
    const std::string_view near = nearest(data.substr(0, colon), names);
    return Error{ErrorCode::invalidArgument,
                 "'" + data + "': no such file, folder or data set; " +
                     (near.empty() ? "'psd-trainer help train' lists the data sets"
                                   : "did you mean " + std::string(near) + "?")};
  }
  return openMnist(data, split);
}

}  // namespace psd

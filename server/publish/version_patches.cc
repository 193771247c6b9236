#include "server/publish/version_patches.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>

#include "common/os/text_file.h"
#include "common/patch/version_patch.h"
#include "common/text/number.h"
#include "server/publish/version_file.h"

namespace psd {
namespace {

constexpr std::string_view kPatchPrefix = "patch-", kPatchSuffix = ".psdpatch";
constexpr uint64_t kPatchBytesMax = 1ull << 40;

/// The number in the name of a patch's file.
std::optional<uint64_t> patchNumber(std::string_view name) {
  if (!name.starts_with(kPatchPrefix) || !name.ends_with(kPatchSuffix)) return {};
  name.remove_prefix(kPatchPrefix.size());
  name.remove_suffix(kPatchSuffix.size());
  return toNumber<uint64_t>(name);
}

Result<std::vector<std::byte>> readAll(Env& env, const std::string& path) {
  PSD_ASSIGN_OR_RETURN(const auto file, env.open(path));
  if (file->size() > kPatchBytesMax) return Error{ErrorCode::io, "'" + path + "' is too large"};
  std::vector<std::byte> bytes(file->size());
  PSD_RETURN_IF_ERROR(file->read(0, bytes));
  return bytes;
}

Status readTensor(const ReadableFile& file, const VersionHeader& header, const SafetensorsEntry& tensor,
                  std::vector<std::byte>& bytes) {
  bytes.resize(tensor.end - tensor.begin);
  return bytes.empty() ? Status() : file.read(header.dataBegin + tensor.begin, bytes);
}

}  // namespace

std::string VersionPatches::path(uint64_t number) const {
  return fmt::format("{}/{}{:010}{}", folder_, kPatchPrefix, number, kPatchSuffix);
}

void VersionPatches::load(const std::vector<uint64_t>& numbers) {
  const auto names = env_->list(folder_);
  for (const std::string& name : names.ok() ? *names : std::vector<std::string>()) {
    const auto number = patchNumber(name);
    if (!number) continue;
    const std::string at = folder_ + "/" + name;
    const bool leads = std::ranges::find(numbers, *number) != numbers.end() && at == path(*number);
    const auto bytes = leads ? readAll(*env_, at) : Error{ErrorCode::io, "it leads to no version"};
    const auto patch = bytes.ok() ? VersionPatch::read(*bytes) : Result<VersionPatch>(bytes.error());
    if (!patch.ok() || patch->header().info.number != *number) {
      static_cast<void>(env_->remove(at));
      continue;
    }
    const std::lock_guard hold(mutex_);
    patches_[*number] = {patch->from(), bytes->size()};
  }
}

Result<uint64_t> VersionPatches::make(uint64_t from, uint64_t to, uint64_t most) {
  std::vector<std::byte> bytes;
  const Status written = write(from, to, bytes);
  if (!written.ok()) sumsOf_ = 0;
  if (written.error().code == ErrorCode::modelMismatch) return uint64_t{0};
  PSD_RETURN_IF_ERROR(written);
  PSD_ASSIGN_OR_RETURN(const VersionPatch patch, VersionPatch::read(bytes));
  if (bytes.size() > most || bytes.size() > patch.header().info.bytes / 2) return uint64_t{0};
  PSD_RETURN_IF_ERROR(
      writeFileAtomically(*env_, path(to), [&](WritableFile& file) { return file.append(bytes); }));
  const std::lock_guard hold(mutex_);
  patches_[to] = {from, bytes.size()};
  return bytes.size();
}

Status VersionPatches::write(uint64_t from, uint64_t to, std::vector<std::byte>& out) {
  const std::string basePath = versionPath(folder_, from), nextPath = versionPath(folder_, to);
  PSD_ASSIGN_OR_RETURN(const VersionHeader before, readVersionHeader(*env_, basePath));
  PSD_ASSIGN_OR_RETURN(const std::string text, readVersionHeaderText(*env_, nextPath));
  PSD_ASSIGN_OR_RETURN(const auto base, env_->open(basePath));
  PSD_ASSIGN_OR_RETURN(const auto next, env_->open(nextPath));
  PSD_ASSIGN_OR_RETURN(VersionPatchWriter writer,
                       VersionPatchWriter::start(from, text, next->size(), appendingTo(out)));
  const VersionHeader& after = writer.header();
  PSD_RETURN_IF_ERROR(checkPatchable(before, after));
  const bool known = sumsOf_ == from && sums_.size() == after.tensors.size();
  sums_.resize(after.tensors.size());
  std::vector<std::byte> old, changed, encoded;
  for (size_t i = 0; i < after.tensors.size(); i++) {
    PSD_RETURN_IF_ERROR(readTensor(*base, before, before.tensors[i], old));
    PSD_RETURN_IF_ERROR(readTensor(*next, after, after.tensors[i], changed));
    if (!known) sums_[i] = contentSum(old);
    encoded.clear();
    VersionTensorPatch patch{.before = sums_[i]};
    patch.patch.kind =
        encodeTensorPatch(old, changed, patchedTensor(after.tensors[i]).elementBytes, sums_[i], encoded);
    patch.patch.bytes = encoded;
    patch.after = sums_[i];
    PSD_RETURN_IF_ERROR(writer.add(patch));
  }
  sumsOf_ = to;
  return writer.finish();
}

void VersionPatches::remove(uint64_t number) {
  {
    const std::lock_guard hold(mutex_);
    if (patches_.erase(number) == 0) return;
  }
  static_cast<void>(env_->remove(path(number)));  // a start removes what is left
}

uint64_t VersionPatches::bytesOf(uint64_t number) const {
  const std::lock_guard hold(mutex_);
  const auto found = patches_.find(number);
  return found == patches_.end() ? 0 : found->second.bytes;
}

std::vector<uint64_t> VersionPatches::chain(uint64_t from, uint64_t to) const {
  std::vector<uint64_t> numbers;
  for (uint64_t at = to; at > from;) {
    const auto patch = patches_.find(at);
    if (patch == patches_.end()) return {};
    numbers.push_back(at);
    at = patch->second.from;
    if (at < from) return {};
  }
  std::ranges::reverse(numbers);
  return numbers;
}

Result<VersionPatches::Bytes> VersionPatches::find(uint64_t from, uint64_t to) {
  const Ends ends(from, to);
  std::vector<uint64_t> chain;
  {
    const std::lock_guard hold(mutex_);
    const auto found = std::ranges::find(recent_, ends, &std::pair<Ends, Bytes>::first);
    if (found != recent_.end()) return found->second;
    chain = this->chain(from, to);
  }
  if (chain.empty()) return Bytes();
  PSD_ASSIGN_OR_RETURN(Bytes joined, join(chain));
  const std::lock_guard hold(mutex_);
  recent_.emplace_front(ends, joined);
  if (recent_.size() > kRecentMax) recent_.pop_back();
  return joined;
}

Result<VersionPatches::Bytes> VersionPatches::join(const std::vector<uint64_t>& chain) {
  std::vector<std::vector<std::byte>> files;
  std::vector<VersionPatch> patches;
  uint64_t sum = 0;
  for (const uint64_t number : chain) {
    PSD_ASSIGN_OR_RETURN(files.emplace_back(), readAll(*env_, path(number)));
    PSD_ASSIGN_OR_RETURN(VersionPatch patch, VersionPatch::read(files.back()));
    patches.push_back(std::move(patch));
    sum += files.back().size();
    if (sum > 2 * patches.front().header().info.bytes) return Bytes();  // too many changes for a union
  }
  if (files.size() == 1) return std::make_shared<const std::vector<std::byte>>(std::move(files.front()));
  std::vector<std::byte> merged;
  PSD_RETURN_IF_ERROR(mergeVersionPatches(patches, appendingTo(merged)));
  if (merged.size() > patches.back().header().info.bytes / 2) return Bytes();
  return std::make_shared<const std::vector<std::byte>>(std::move(merged));
}

}  // namespace psd

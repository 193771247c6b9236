#include "server/publish/version_patches.h"

#include <algorithm>
#include <array>
#include <new>
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
constexpr uint64_t kRecentBytes = 256u << 20;  // of the unions that are kept in memory, besides the newest
constexpr size_t kRecentMax = 16;

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

/// The ends of a patch, and its size.
struct PatchFile {
  uint64_t from = 0, to = 0, bytes = 0;
};
std::optional<PatchFile> peek(Env& env, const std::string& path) {
  const auto file = env.open(path);
  std::array<std::byte, kPatchHeadBytes> first;
  if (!file.ok() || (*file)->size() < first.size() || !(*file)->read(0, first).ok()) return {};
  const auto ends = peekPatch(first);
  if (!ends) return {};
  return PatchFile{ends->from, ends->to, (*file)->size()};
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
    const auto patch = leads ? peek(*env_, at) : std::nullopt;
    if (!patch || patch->to != *number) {
      static_cast<void>(env_->remove(at));
      continue;
    }
    const std::lock_guard hold(mutex_);
    patches_[*number] = {patch->from, patch->bytes};
  }
}

Result<uint64_t> VersionPatches::make(uint64_t from, uint64_t to, uint64_t most) {
  try {
    PSD_ASSIGN_OR_RETURN(const VersionHeader header, readVersionHeader(*env_, versionPath(folder_, to)));
    std::vector<std::byte> bytes;
    const Status written = write(from, to, std::min(most, header.info.bytes / 2), bytes);
    if (!written.ok()) {
      sumsOf_ = 0;
      const ErrorCode code = written.error().code;
      if (code == ErrorCode::modelMismatch || code == ErrorCode::overloaded) return uint64_t{0};
      return written.error();
    }
    PSD_RETURN_IF_ERROR(
        writeFileAtomically(*env_, path(to), [&](WritableFile& file) { return file.append(bytes); }));
    const std::lock_guard hold(mutex_);
    patches_[to] = {from, bytes.size()};
    return bytes.size();
  } catch (const std::bad_alloc&) {
    sumsOf_ = 0;
    return Error{ErrorCode::overloaded, "out of memory"};
  }
}

Status VersionPatches::write(uint64_t from, uint64_t to, uint64_t most, std::vector<std::byte>& out) {
  const PatchSink sink = [&out, most](std::span<const std::byte> bytes) -> Status {
    if (out.size() + bytes.size() > most) return {ErrorCode::overloaded, "the patch is too large"};
    out.insert(out.end(), bytes.begin(), bytes.end());
    return {};
  };
  const std::string basePath = versionPath(folder_, from), nextPath = versionPath(folder_, to);
  PSD_ASSIGN_OR_RETURN(const VersionHeader before, readVersionHeader(*env_, basePath));
  PSD_ASSIGN_OR_RETURN(const std::string text, readVersionHeaderText(*env_, nextPath));
  PSD_ASSIGN_OR_RETURN(const auto base, env_->open(basePath));
  PSD_ASSIGN_OR_RETURN(const auto next, env_->open(nextPath));
  PSD_ASSIGN_OR_RETURN(VersionPatchWriter writer, VersionPatchWriter::start(from, text, next->size(), sink));
  const VersionHeader& after = writer.header();
  PSD_RETURN_IF_ERROR(checkPatchable(before, after));
  const bool known = sumsOf_ == from && sums_.size() == after.tensors.size();
  sums_.resize(after.tensors.size());
  std::vector<std::byte> old, changed, encoded;
  for (size_t i = 0; i < after.tensors.size(); i++) {
    PSD_RETURN_IF_ERROR(readTensor(*base, before, before.tensors[i], old));
    PSD_RETURN_IF_ERROR(readTensor(*next, after, after.tensors[i], changed));
    if (!known) sums_[i] = contentSum(old);
    PSD_RETURN_IF_ERROR(writer.add(makeTensorPatch(after.tensors[i], old, changed, sums_[i], encoded)));
  }
  sumsOf_ = to;
  return writer.finish();
}

void VersionPatches::remove(uint64_t number) {
  {
    const std::lock_guard hold(mutex_);
    if (patches_.erase(number) == 0) return;
    std::erase_if(recent_, [number](const auto& each) { return each.first.second == number; });
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

Result<uint64_t> VersionPatches::size(uint64_t from, uint64_t to) {
  {
    const std::lock_guard hold(mutex_);
    const auto direct = patches_.find(to);
    if (direct != patches_.end() && direct->second.from == from) return direct->second.bytes;
  }
  PSD_ASSIGN_OR_RETURN(const Bytes bytes, unionOf(from, to));
  return bytes ? bytes->size() : 0;
}

Status VersionPatches::read(uint64_t from, uint64_t to, uint64_t offset, std::span<std::byte> into) {
  PSD_ASSIGN_OR_RETURN(const uint64_t size, this->size(from, to));
  if (size == 0) return {ErrorCode::notReady, "there is no such patch any more"};
  if (into.empty() || offset > size || into.size() > size - offset) {
    return {ErrorCode::badSlice, fmt::format("{} bytes from {} on are not in the {} bytes of the patch",
                                             into.size(), offset, size)};
  }
  bool direct = false;
  {
    const std::lock_guard hold(mutex_);
    const auto found = patches_.find(to);
    direct = found != patches_.end() && found->second.from == from;
  }
  if (direct) {
    PSD_ASSIGN_OR_RETURN(const auto file, env_->open(path(to)));
    return file->read(offset, into);
  }
  PSD_ASSIGN_OR_RETURN(const Bytes bytes, unionOf(from, to));
  if (!bytes || bytes->size() != size) return {ErrorCode::notReady, "there is no such patch any more"};
  std::copy_n(bytes->begin() + static_cast<ptrdiff_t>(offset), into.size(), into.begin());
  return {};
}

Result<VersionPatches::Bytes> VersionPatches::unionOf(uint64_t from, uint64_t to) {
  const Ends ends(from, to);
  const std::lock_guard alone(joining_);
  std::vector<uint64_t> chain;
  {
    const std::lock_guard hold(mutex_);
    const auto found = std::ranges::find(recent_, ends, &std::pair<Ends, Bytes>::first);
    if (found != recent_.end()) {
      recent_.splice(recent_.begin(), recent_, found);
      return recent_.front().second;
    }
    chain = this->chain(from, to);
  }
  if (chain.empty()) return Bytes();
  PSD_ASSIGN_OR_RETURN(Bytes joined, join(chain));
  const std::lock_guard hold(mutex_);
  recent_.emplace_front(ends, joined);
  uint64_t bytes = 0;
  size_t kept = 0;
  for (const auto& [each, patch] : recent_) {
    bytes += patch ? patch->size() : 0;
    if (kept > 0 && (bytes > kRecentBytes || kept == kRecentMax)) break;
    kept++;
  }
  recent_.resize(kept);
  return joined;
}

Result<VersionPatches::Bytes> VersionPatches::join(const std::vector<uint64_t>& chain) {
  std::vector<std::vector<std::byte>> files;
  std::vector<VersionPatch> patches;
  uint64_t sum = 0;
  for (const uint64_t number : chain) {
    PSD_ASSIGN_OR_RETURN(files.emplace_back(), readAll(*env_, path(number)));
    auto patch = VersionPatch::read(files.back());
    if (!patch.ok()) {
      spdlog::warn("'{}' is removed: {}", path(number), patch.message());
      remove(number);
      return Bytes();
    }
    patches.push_back(*std::move(patch));
    sum += files.back().size();
    if (sum > 2 * patches.front().header().info.bytes) return Bytes();  // too many changes for a union
  }
  std::vector<std::byte> merged;
  PSD_RETURN_IF_ERROR(mergeVersionPatches(patches, appendingTo(merged)));
  if (merged.size() > patches.back().header().info.bytes / 2) return Bytes();
  return std::make_shared<const std::vector<std::byte>>(std::move(merged));
}

}  // namespace psd

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

/// Reads a tensor of a file, which outlives the reader, piece by piece into `buffer`.
TensorReader readerOf(const ReadableFile& file, uint64_t begin, std::vector<std::byte>& buffer) {
  return [&file, begin, &buffer](uint64_t at, uint64_t count) -> Result<std::span<const std::byte>> {
    buffer.resize(count);
    PSD_RETURN_IF_ERROR(file.read(begin + at, buffer));
    return std::span<const std::byte>(buffer);
  };
}

Result<ContentSum> sumOf(const TensorReader& tensor, uint64_t bytes) {
  constexpr uint64_t kPieceBytes = 1u << 20;
  ContentSum sum;
  for (uint64_t at = 0; at < bytes; at += kPieceBytes) {
    PSD_ASSIGN_OR_RETURN(const auto piece, tensor(at, std::min(kPieceBytes, bytes - at)));
    sum += contentSumAt(at / sizeof(uint64_t), piece);
  }
  return sum;
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

Result<uint64_t> VersionPatches::make(uint64_t from, uint64_t to, std::span<const std::byte> values,
                                      uint64_t most) {
  try {
    std::vector<std::byte> patch;
    const Status made = encode(from, to, values, most, patch);
    if (made.ok()) return write(from, to, patch);
    sumsOf_ = 0;
    const ErrorCode code = made.error().code;
    if (code == ErrorCode::modelMismatch || code == ErrorCode::overloaded) return uint64_t{0};
    return made.error();
  } catch (const std::bad_alloc&) {
    sumsOf_ = 0;
    return Error{ErrorCode::overloaded, "out of memory"};
  }
}

Result<uint64_t> VersionPatches::keep(uint64_t from, uint64_t to, std::span<const std::byte> patch,
                                      uint64_t most) {
  if (patch.size() < kPatchHeadBytes || patch.size() > most) return uint64_t{0};
  const auto ends = peekPatch(patch.first<kPatchHeadBytes>());
  if (!ends || ends->from != from || ends->to != to) return uint64_t{0};
  return write(from, to, patch);
}

Result<uint64_t> VersionPatches::write(uint64_t from, uint64_t to, std::span<const std::byte> patch) {
  PSD_RETURN_IF_ERROR(
      writeFileAtomically(*env_, path(to), [&](WritableFile& file) { return file.append(patch); }));
  const std::lock_guard hold(mutex_);
  patches_[to] = {from, patch.size()};
  return patch.size();
}

Status VersionPatches::encode(uint64_t from, uint64_t to, std::span<const std::byte> values, uint64_t most,
                              std::vector<std::byte>& out) {
  const PatchSink sink = [&out, most](std::span<const std::byte> bytes) -> Status {
    if (out.size() + bytes.size() > most) return {ErrorCode::overloaded, "the patch is too large"};
    out.insert(out.end(), bytes.begin(), bytes.end());
    return {};
  };
  const std::string basePath = versionPath(folder_, from), nextPath = versionPath(folder_, to);
  PSD_ASSIGN_OR_RETURN(const VersionHeader before, readVersionHeader(*env_, basePath));
  PSD_ASSIGN_OR_RETURN(const auto base, env_->open(basePath));
  PSD_ASSIGN_OR_RETURN(const std::string text, readVersionHeaderText(*env_, nextPath));
  const uint64_t fileBytes = sizeof(uint64_t) + text.size() + values.size();
  PSD_ASSIGN_OR_RETURN(VersionPatchWriter writer, VersionPatchWriter::start(from, text, fileBytes, sink));
  const VersionHeader& after = writer.header();
  PSD_RETURN_IF_ERROR(checkPatchable(before, after));
  const bool known = sumsOf_ == from && sums_.size() == after.tensors.size();
  sums_.resize(after.tensors.size());
  std::vector<std::byte> piece, encoded;
  for (size_t i = 0; i < after.tensors.size(); i++) {
    const SafetensorsEntry& tensor = after.tensors[i];
    const TensorReader reader = readerOf(*base, before.dataBegin + tensor.begin, piece);
    const auto next = values.subspan(tensor.begin, tensor.end - tensor.begin);
    if (!known) {
      PSD_ASSIGN_OR_RETURN(sums_[i], sumOf(reader, next.size()));
    }
    PSD_ASSIGN_OR_RETURN(const VersionTensorPatch patch,
                         makeTensorPatch(tensor, reader, next, sums_[i], encoded));
    PSD_RETURN_IF_ERROR(writer.add(patch));
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

void VersionPatches::clear() {
  sumsOf_ = 0;
  std::map<uint64_t, Patch> gone;
  {
    const std::lock_guard hold(mutex_);
    std::swap(gone, patches_);
    recent_.clear();
  }
  for (const auto& [number, patch] : gone) static_cast<void>(env_->remove(path(number)));
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

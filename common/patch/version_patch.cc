#include "common/patch/version_patch.h"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "common/checksum/crc32c.h"
#include "common/text/text.h"

namespace psd {
namespace {

constexpr char kPatchMagic[8] = {'p', 's', 'd', 'p', 'a', 't', 'c', 'h'};
constexpr uint32_t kPatchFormat = 1;

/// The first bytes of a patch; the text of the header follows.
struct PatchHead {
  char magic[8];
  uint32_t format, tensors;
  uint64_t history, from, to, fileBytes, headerBytes;
};
static_assert(sizeof(PatchHead) == kPatchHeadBytes);

/// The bytes before a tensor's patch.
struct TensorHead {
  PatchKind kind;
  uint32_t zero;
  uint64_t bytes;
  ContentSum before, after;
};
static_assert(sizeof(TensorHead) == 48);

Error damagedPatch(std::string why) { return {ErrorCode::io, "the patch is damaged: " + std::move(why)}; }
Error noPatch(std::string why) { return {ErrorCode::modelMismatch, std::move(why)}; }

template <class T>
std::span<const std::byte> rawBytes(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

/// Takes `count` bytes from the front of `rest`; whether there are as many.
bool takeBytes(std::span<const std::byte>& rest, uint64_t count, std::span<const std::byte>& taken) {
  if (count > rest.size()) return false;
  taken = rest.first(count);
  rest = rest.subspan(count);
  return true;
}

template <class T>
bool takeValue(std::span<const std::byte>& rest, T& value) {
  std::span<const std::byte> bytes;
  if (!takeBytes(rest, sizeof value, bytes)) return false;
  std::memcpy(&value, bytes.data(), sizeof value);
  return true;
}

template <class Byte>
std::span<Byte> bytesIn(std::span<Byte> file, const VersionHeader& header, const SafetensorsEntry& tensor) {
  return file.subspan(header.dataBegin + tensor.begin, tensor.end - tensor.begin);
}

/// The header of a version's file.
struct VersionBytes {
  std::string_view headerText;
  VersionHeader header;
};

Result<VersionBytes> readVersion(std::span<const std::byte> bytes) {
  const auto notVersion = [](const std::string& why) {
    return Error{ErrorCode::io, "the file is not a version: " + why};
  };
  const auto text = versionHeaderText(bytes);
  if (!text.ok()) return notVersion(text.message());
  auto header = parseVersionHeader(*text, bytes.size());
  if (!header.ok()) return notVersion(header.message());
  return VersionBytes{*text, *std::move(header)};
}

/// Fails unless the tensors of both versions have the same names and shapes at the same places.
Status checkTables(const VersionHeader& base, const VersionHeader& next) {
  if (base.dataBegin != next.dataBegin) {
    return noPatch(fmt::format("the tensors of version {} begin at byte {}, those of version {} at byte {}",
                               base.info.number, base.dataBegin, next.info.number, next.dataBegin));
  }
  if (base.tensors.size() != next.tensors.size()) {
    return noPatch(fmt::format("version {} has {} tensors, version {} has {}", base.info.number,
                               base.tensors.size(), next.info.number, next.tensors.size()));
  }
  const auto key = [](const SafetensorsEntry& tensor) {
    return std::tie(tensor.name, tensor.dtype, tensor.shape, tensor.begin, tensor.end);
  };
  for (size_t i = 0; i < base.tensors.size(); i++) {
    const SafetensorsEntry &before = base.tensors[i], &after = next.tensors[i];
    if (key(before) == key(after)) continue;
    return noPatch(fmt::format("tensor {} of version {} is {}, of version {} {}", i, base.info.number,
                               before.toString(), next.info.number, after.toString()));
  }
  return {};
}

Status checkHistory(const VersionInfo& base, uint64_t history, uint64_t number) {
  if (base.history == history && base.number == number) return {};
  return noPatch(fmt::format("the patch is for version {} of history {:016x}, not for version {} of {:016x}",
                             number, history, base.number, base.history));
}

Status checkSums(size_t sums, const VersionHeader& header) {
  if (sums == header.tensors.size()) return {};
  return {ErrorCode::internal, fmt::format("{} sums for {} tensors", sums, header.tensors.size())};
}

/// Reads the head and the header of the version that the patch leads to.
Status readPatchHead(std::span<const std::byte>& rest, PatchHead& head, std::string_view& text,
                     VersionHeader& header) {
  std::span<const std::byte> textBytes;
  if (!takeValue(rest, head)) return damagedPatch("its head is truncated");
  if (std::memcmp(head.magic, kPatchMagic, sizeof kPatchMagic) != 0)
    return damagedPatch("it does not begin as a patch");
  if (head.format != kPatchFormat) {
    return damagedPatch(fmt::format("its format is {}; this psd reads format {}", head.format, kPatchFormat));
  }
  if (!takeBytes(rest, head.headerBytes, textBytes)) return damagedPatch("its header is truncated");
  text = {reinterpret_cast<const char*>(textBytes.data()), textBytes.size()};
  auto parsed = parseVersionHeader(text, head.fileBytes);
  if (!parsed.ok()) return damagedPatch(parsed.message());
  header = std::move(*parsed);
  if (header.info.number != head.to || header.info.history != head.history || head.from >= head.to) {
    return damagedPatch("its numbers and its header contradict each other");
  }
  if (header.tensors.size() != head.tensors)
    return damagedPatch("its number of tensors differs from its header's");
  return {};
}

/// Reads the patch of one tensor.
Status readTensorPatch(std::span<const std::byte>& rest, const SafetensorsEntry& entry,
                       VersionTensorPatch& tensor) {
  const auto bad = [&](const std::string& why) {
    return damagedPatch("tensor '" + printable(entry.name) + "': " + why);
  };
  TensorHead head;
  if (!takeValue(rest, head) || !takeBytes(rest, head.bytes, tensor.patch.bytes))
    return bad("it is truncated");
  tensor.patch.kind = head.kind;
  tensor.before = head.before;
  tensor.after = head.after;
  const Status valid = checkTensorPatch(tensor.patch, patchedTensor(entry));
  if (!valid.ok()) return bad(valid.message());
  if (head.zero != 0) return bad("a reserved field is not zero");
  if (head.kind == PatchKind::same && head.before != head.after)
    return bad("it is unchanged with another sum");
  return {};
}

}  // namespace

PatchedTensor patchedTensor(const SafetensorsEntry& tensor) {
  // Of an unknown dtype bytes are compared.
  const uint64_t elementBytes = std::max<uint64_t>(1, safetensorsElementBytes(tensor.dtype));
  return {tensor.end - tensor.begin, static_cast<uint32_t>(elementBytes)};
}

std::optional<PatchEnds> peekPatch(std::span<const std::byte, kPatchHeadBytes> first) {
  PatchHead head;
  std::memcpy(&head, first.data(), sizeof head);
  if (std::memcmp(head.magic, kPatchMagic, sizeof kPatchMagic) != 0 || head.from >= head.to) return {};
  return PatchEnds{head.history, head.from, head.to};
}

Status checkPatchable(const VersionHeader& base, const VersionHeader& next) {
  PSD_RETURN_IF_ERROR(checkTables(base, next));
  if (base.info.history == next.info.history) return {};
  return noPatch(
      fmt::format("the versions are of histories {:016x} and {:016x}", base.info.history, next.info.history));
}

PatchSink appendingTo(std::vector<std::byte>& out) {
  return [&out](std::span<const std::byte> bytes) -> Status {
    out.insert(out.end(), bytes.begin(), bytes.end());
    return {};
  };
}

Result<std::vector<ContentSum>> contentSums(std::span<const std::byte> bytes) {
  PSD_ASSIGN_OR_RETURN(const VersionBytes file, readVersion(bytes));
  std::vector<ContentSum> sums;
  for (const SafetensorsEntry& tensor : file.header.tensors) {
    sums.push_back(contentSum(bytesIn(bytes, file.header, tensor)));
  }
  return sums;
}

Result<VersionPatchWriter> VersionPatchWriter::start(uint64_t from, std::string_view headerText,
                                                     uint64_t fileBytes, PatchSink sink) {
  PSD_ASSIGN_OR_RETURN(VersionHeader header, parseVersionHeader(headerText, fileBytes));
  const VersionInfo& info = header.info;
  if (from >= info.number) {
    return noPatch(fmt::format("a patch leads to a later version, not from {} to {}", from, info.number));
  }
  PatchHead head{.format = kPatchFormat,
                 .tensors = static_cast<uint32_t>(header.tensors.size()),
                 .history = info.history,
                 .from = from,
                 .to = info.number,
                 .fileBytes = fileBytes,
                 .headerBytes = headerText.size()};
  std::ranges::copy(kPatchMagic, head.magic);
  VersionPatchWriter writer(std::move(header), std::move(sink));
  PSD_RETURN_IF_ERROR(writer.write(rawBytes(head)));
  PSD_RETURN_IF_ERROR(writer.write(std::as_bytes(std::span(headerText))));
  return writer;
}

Status VersionPatchWriter::write(std::span<const std::byte> bytes) {
  checksum_ = crc32c(bytes, checksum_);
  return sink_(bytes);
}

Status VersionPatchWriter::add(const VersionTensorPatch& tensor) {
  if (added_ == header_.tensors.size())
    return {ErrorCode::internal, "a patch of more tensors than its header"};
  added_++;
  const TensorHead head{tensor.patch.kind, 0, tensor.patch.bytes.size(), tensor.before, tensor.after};
  PSD_RETURN_IF_ERROR(write(rawBytes(head)));
  return write(tensor.patch.bytes);
}

Status VersionPatchWriter::finish() {
  if (added_ != header_.tensors.size())
    return {ErrorCode::internal, "a patch of fewer tensors than its header"};
  const uint32_t checksum = checksum_;
  return sink_(rawBytes(checksum));
}

Result<VersionTensorPatch> makeTensorPatch(const SafetensorsEntry& tensor, const TensorReader& before,
                                           std::span<const std::byte> after, ContentSum& sum,
                                           std::vector<std::byte>& bytes) {
  bytes.clear();
  VersionTensorPatch patch{.before = sum};
  PSD_ASSIGN_OR_RETURN(patch.patch.kind,
                       encodeTensorPatch(before, after, patchedTensor(tensor).elementBytes, sum, bytes));
  patch.patch.bytes = bytes;
  patch.after = sum;
  return patch;
}

Status makeVersionPatch(std::span<const std::byte> base, std::span<const std::byte> next,
                        std::span<ContentSum> sums, const PatchSink& sink) {
  PSD_ASSIGN_OR_RETURN(const VersionBytes before, readVersion(base));
  PSD_ASSIGN_OR_RETURN(const VersionBytes after, readVersion(next));
  PSD_RETURN_IF_ERROR(checkPatchable(before.header, after.header));
  PSD_RETURN_IF_ERROR(checkSums(sums.size(), before.header));
  PSD_ASSIGN_OR_RETURN(
      VersionPatchWriter writer,
      VersionPatchWriter::start(before.header.info.number, after.headerText, next.size(), sink));
  std::vector<std::byte> bytes;
  for (size_t i = 0; i < sums.size(); i++) {
    const SafetensorsEntry& tensor = after.header.tensors[i];
    PSD_ASSIGN_OR_RETURN(const VersionTensorPatch patch,
                         makeTensorPatch(tensor, readerOf(bytesIn(base, before.header, tensor)),
                                         bytesIn(next, after.header, tensor), sums[i], bytes));
    PSD_RETURN_IF_ERROR(writer.add(patch));
  }
  return writer.finish();
}

Result<VersionPatch> VersionPatch::read(std::span<const std::byte> bytes) {
  uint32_t checksum = 0;
  if (bytes.size() < sizeof checksum) return damagedPatch("it is truncated");
  std::span<const std::byte> rest = bytes.first(bytes.size() - sizeof checksum);
  std::memcpy(&checksum, bytes.data() + rest.size(), sizeof checksum);
  const uint32_t found = crc32c(rest);
  if (found != checksum) {
    return damagedPatch(fmt::format("its checksum is {}; it says {}", crcText(found), crcText(checksum)));
  }
  VersionPatch patch;
  PatchHead head;
  PSD_RETURN_IF_ERROR(readPatchHead(rest, head, patch.headerText_, patch.header_));
  patch.from_ = head.from;
  for (const SafetensorsEntry& entry : patch.header_.tensors) {
    PSD_RETURN_IF_ERROR(readTensorPatch(rest, entry, patch.tensors_.emplace_back()));
  }
  if (!rest.empty()) return damagedPatch("bytes follow its last tensor");
  return patch;
}

Status VersionPatch::checkBase(std::span<const std::byte> file) const {
  PSD_ASSIGN_OR_RETURN(const VersionBytes base, readVersion(file));
  PSD_RETURN_IF_ERROR(checkHistory(base.header.info, header_.info.history, from_));
  if (file.size() != header_.info.bytes) {
    return noPatch(
        fmt::format("the patch is for a file of {} bytes, not {}", header_.info.bytes, file.size()));
  }
  return checkTables(base.header, header_);
}

Result<std::vector<std::string>> VersionPatch::apply(std::span<std::byte> file,
                                                     std::span<ContentSum> sums) const {
  PSD_RETURN_IF_ERROR(checkBase(file));
  PSD_RETURN_IF_ERROR(checkSums(sums.size(), header_));
  std::vector<std::string> wrong;
  for (size_t i = 0; i < tensors_.size(); i++) {
    const SafetensorsEntry& entry = header_.tensors[i];
    PSD_RETURN_IF_ERROR(applyTensorPatch(tensors_[i].patch, patchedTensor(entry).elementBytes,
                                         bytesIn(file, header_, entry), sums[i]));
    if (sums[i] != tensors_[i].after) wrong.push_back(entry.name);
  }
  std::ranges::copy(std::as_bytes(std::span(headerText_)), file.begin() + sizeof(uint64_t));
  return wrong;
}

Status mergeVersionPatches(std::span<const VersionPatch> patches, const PatchSink& sink) {
  for (size_t i = 1; i < patches.size(); i++) {
    const VersionPatch &one = patches[i - 1], &next = patches[i];
    PSD_RETURN_IF_ERROR(checkHistory(one.header().info, next.header().info.history, next.from()));
    PSD_RETURN_IF_ERROR(checkTables(one.header(), next.header()));
    for (size_t j = 0; j < one.tensors().size(); j++) {
      if (one.tensors()[j].after == next.tensors()[j].before) continue;
      return noPatch(fmt::format("the patches to and from version {} disagree about tensor '{}'", next.from(),
                                 printable(one.header().tensors[j].name)));
    }
  }
  const VersionPatch& last = patches.back();
  PSD_ASSIGN_OR_RETURN(
      VersionPatchWriter writer,
      VersionPatchWriter::start(patches.front().from(), last.headerText(), last.header().info.bytes, sink));
  std::vector<std::byte> held, merged;
  for (size_t j = 0; j < last.tensors().size(); j++) {
    VersionTensorPatch tensor = patches.front().tensors()[j];
    for (const VersionPatch& next : patches.subspan(1)) {
      merged.clear();
      PSD_ASSIGN_OR_RETURN(tensor.patch.kind,
                           mergeTensorPatches(tensor.patch, next.tensors()[j].patch,
                                              patchedTensor(last.header().tensors[j]), merged));
      held.swap(merged);
      tensor.patch.bytes = held;
      tensor.after = next.tensors()[j].after;
    }
    PSD_RETURN_IF_ERROR(writer.add(tensor));
  }
  return writer.finish();
}

}  // namespace psd

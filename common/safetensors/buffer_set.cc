#include "common/safetensors/buffer_set.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/config/json_file.h"
#include "common/text/text.h"

namespace psd {
namespace {

constexpr uint64_t kBuffersHeaderBytesMax = 4ull << 20;

Error notBuffers(const std::string& why) {
  return {ErrorCode::invalidArgument, "the model's buffers are no safetensors file: " + why};
}

/// Checks what parseSafetensorsHeader() does not: names, known dtypes and the absence of gaps.
Status checkEntries(const std::vector<SafetensorsEntry>& entries, uint64_t dataBytes) {
  std::set<std::string_view> names;
  uint64_t end = 0;
  for (const SafetensorsEntry& entry : entries) {
    const auto refuse = [&](const std::string& why) {
      return Status(ErrorCode::invalidArgument, fmt::format("buffer '{}' {}", printable(entry.name), why));
    };
    if (const Status named = validateModel({"", {{entry.name, DType::f32, {}}}}); !named.ok()) {
      return refuse("has no name that a tensor may have: " + named.message());
    }
    if (!names.insert(entry.name).second) return refuse("is there twice");
    if (safetensorsElementBytes(entry.dtype) == 0) {
      return refuse(fmt::format("has the unknown dtype '{}'", printable(entry.dtype, 20)));
    }
    if (entry.begin != end) return refuse("does not begin where the values before it end");
    end = entry.end;
  }
  if (end == dataBytes) return {};
  return notBuffers(fmt::format("its values have {} bytes, and {} bytes belong to buffers", dataBytes, end));
}

}  // namespace

Result<std::shared_ptr<const BufferSet>> BufferSet::parse(std::vector<std::byte> file) {
  uint64_t headerBytes = 0;
  if (file.size() < sizeof headerBytes) return notBuffers("shorter than 8 bytes");
  std::memcpy(&headerBytes, file.data(), sizeof headerBytes);
  if (headerBytes > file.size() - sizeof headerBytes)
    return notBuffers("its header length does not fit the file");
  if (headerBytes > kBuffersHeaderBytesMax) {
    return notBuffers(
        fmt::format("its header has {} bytes; the limit is {}", headerBytes, kBuffersHeaderBytesMax));
  }
  const std::string_view header(reinterpret_cast<const char*>(file.data()) + sizeof headerBytes, headerBytes);
  const uint64_t dataBegin = sizeof headerBytes + headerBytes, dataBytes = file.size() - dataBegin;
  auto entries = parseSafetensorsHeader(header, dataBytes);
  if (!entries.ok()) return notBuffers(entries.message());
  PSD_RETURN_IF_ERROR(checkEntries(*entries, dataBytes));
  return std::shared_ptr<const BufferSet>(new BufferSet(std::move(file), *std::move(entries), dataBegin));
}

Result<std::shared_ptr<const BufferSet>> BufferSet::make(const std::vector<SafetensorsEntry>& entries,
                                                         std::span<const std::byte> bytes) {
  SafetensorsHead head;
  for (const SafetensorsEntry& entry : entries)
    head.add(entry.name, entry.dtype, entry.shape, entry.end - entry.begin);
  const std::string text = head.text();
  std::vector<std::byte> file(text.size() + bytes.size());
  std::memcpy(file.data(), text.data(), text.size());
  std::ranges::copy(bytes, file.begin() + static_cast<std::ptrdiff_t>(text.size()));
  return parse(std::move(file));
}

Status BufferSet::checkNames(const ModelSpec& model) const {
  std::set<std::string_view> tensors, tables;
  for (const TensorSpec& tensor : model.whole ? *model.whole : model.tensors) tensors.insert(tensor.name);
  for (const TableSpec& table : model.tables) tables.insert(table.name);
  for (const SafetensorsEntry& entry : entries_) {
    const bool isTensor = tensors.contains(entry.name);
    if (!isTensor && !tables.contains(entry.name)) continue;
    return {ErrorCode::invalidArgument, fmt::format("buffer '{}' has the name of a {} of the model",
                                                    printable(entry.name), isTensor ? "tensor" : "table")};
  }
  return {};
}

Status writeModelFile(WritableFile& file, const ModelSpec& model, const BufferSet* buffers,
                      const TensorSource& source) {
  const std::map<std::string, std::string> metadata = {{"format", "pt"}, {"writer", "psd " PSD_VERSION}};
  if (!buffers || buffers->entries().empty()) return writeSafetensors(file, model, metadata, source);
  SafetensorsHead head;
  nlohmann::ordered_json names = nlohmann::ordered_json::array();
  // Wider elements come first, so that all are aligned, as some readers require: buffers of four bytes or
  // more, the tensors, which a model has in the order of their width, then the other buffers.
  std::vector<SafetensorsEntry> entries = buffers->entries();
  for (const SafetensorsEntry& entry : entries) names.push_back(entry.name);
  head.addMetadata(metadata);
  head.addMetadata({{std::string(kBuffersMetadata), jsonText(names)}});
  std::ranges::stable_sort(entries, std::greater(), [](const SafetensorsEntry& entry) {
    return safetensorsElementBytes(entry.dtype);
  });
  const auto narrow = std::ranges::find_if(entries, [](const SafetensorsEntry& entry) {
    return safetensorsElementBytes(entry.dtype) < sizeof(float);
  });
  const std::span wide(entries.begin(), narrow), rest(narrow, entries.end());
  const auto add = [&](std::span<SafetensorsEntry> some) {
    for (const SafetensorsEntry& entry : some)
      head.add(entry.name, entry.dtype, entry.shape, entry.end - entry.begin);
  };
  add(wide);
  head.add(model);
  add(rest);
  const auto append = [&](std::span<SafetensorsEntry> some) -> Status {
    for (const SafetensorsEntry& entry : some) PSD_RETURN_IF_ERROR(file.append(buffers->valuesOf(entry)));
    return {};
  };
  const std::string text = head.text();
  PSD_RETURN_IF_ERROR(file.append(std::as_bytes(std::span(text))));
  PSD_RETURN_IF_ERROR(append(wide));
  PSD_RETURN_IF_ERROR(writeTensors(file, model, source));
  return append(rest);
}

Result<std::shared_ptr<const BufferSet>> readBuffers(const SafetensorsReader& reader) {
  if (reader.buffers().empty()) return std::shared_ptr<const BufferSet>();
  std::vector<std::byte> values;
  for (const SafetensorsEntry& entry : reader.buffers()) {
    const uint64_t at = values.size(), count = entry.end - entry.begin;
    values.resize(at + count);
    PSD_RETURN_IF_ERROR(reader.read(entry, std::span(values).subspan(at)));
  }
  return BufferSet::make(reader.buffers(), values);
}

}  // namespace psd

#include "common/safetensors/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "common/codec/codec.h"
#include "common/config/json_file.h"
#include "common/text/text.h"

namespace psd {
namespace {

using Json = nlohmann::ordered_json;
static_assert(std::endian::native == std::endian::little, "safetensors files are little endian");

constexpr uint64_t kHeaderBytesMax = 100'000'000;  // the format's own limit

constexpr size_t kUnreadListed = 3;

/// Bytes of a tensor of this shape; empty on overflow.
std::optional<uint64_t> bytesOf(const std::vector<uint64_t>& shape, uint64_t elementBytes) {
  if (std::ranges::count(shape, uint64_t{0}) != 0) return 0;
  uint64_t bytes = elementBytes;
  for (const uint64_t extent : shape) {
    if (bytes > UINT64_MAX / extent) return {};
    bytes *= extent;
  }
  return bytes;
}

/// Reads a list of integers; throws nlohmann's type_error on anything else, which get() would convert.
std::vector<uint64_t> readSizes(const Json& list) {
  const auto& items = list.get_ref<const Json::array_t&>();
  std::vector<uint64_t> sizes;
  for (const Json& item : items) sizes.push_back(item.get_ref<const Json::number_unsigned_t&>());
  return sizes;
}

/// Reads one tensor of the header; throws nlohmann's exceptions on wrong types.
Result<SafetensorsEntry> readEntry(const std::string& name, const Json& value, uint64_t dataBytes) {
  const auto bad = [&](const std::string& why) {
    return Error{ErrorCode::io, "tensor '" + printable(name) + "': " + why};
  };
  SafetensorsEntry entry{name, value.at("dtype").get<std::string>(), readSizes(value.at("shape"))};
  const std::vector<uint64_t> offsets = readSizes(value.at("data_offsets"));
  if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > dataBytes) {
    return bad("data_offsets lie outside the file");
  }
  entry.begin = offsets[0];
  entry.end = offsets[1];
  const uint64_t elementBytes = safetensorsElementBytes(entry.dtype);
  if (elementBytes != 0 && bytesOf(entry.shape, elementBytes) != entry.end - entry.begin) {
    return bad("data_offsets do not match its shape");
  }
  return entry;
}

/// A dtype as the format names it.
std::string_view fileName(DType dtype) {
  switch (dtype) {
    case DType::f32: return "F32";
    case DType::bf16: return "BF16";
    case DType::f16: return "F16";
    case DType::u64: return "U64";
  }
  return "";
}

/// The dtype of that name; empty: not one that psd reads.
std::optional<DType> dtypeOf(std::string_view name, bool integers) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    if (name == fileName(dtype)) return dtype;
  }
  return integers && name == fileName(DType::u64) ? std::optional(DType::u64) : std::nullopt;
}

/// The names that kBuffersMetadata lists; the header is valid.
std::set<std::string> bufferNames(std::string_view text) {
  if (text.find(kBuffersMetadata) == std::string_view::npos) return {};
  std::set<std::string> names;
  const auto header = parseJson(text, "its header");
  const auto metadata = header.ok() ? header->find(kReservedName) : Json::const_iterator();
  if (!header.ok() || metadata == header->end() || !metadata->is_object()) return {};
  const auto listed = metadata->find(kBuffersMetadata);
  if (listed == metadata->end() || !listed->is_string()) return {};
  const auto list = parseJson(listed->get_ref<const std::string&>(), kBuffersMetadata);
  if (!list.ok() || !list->is_array()) return {};
  for (const Json& name : *list) {
    if (name.is_string()) names.insert(name.get<std::string>());
  }
  return names;
}

/// Why a model cannot contain the tensor; empty if it can.
std::string unreadable(const SafetensorsEntry& entry, std::optional<DType> dtype) {
  if (!dtype) return "psd reads F32, BF16 and F16";
  const Status valid = validateModel({"", {{entry.name, *dtype, entry.shape}}});
  return valid.ok() ? std::string() : valid.message();
}

}  // namespace

uint64_t safetensorsElementBytes(std::string_view dtype) {
  if (dtype == "F64" || dtype == "I64" || dtype == "U64") return 8;
  if (dtype == "F32" || dtype == "I32" || dtype == "U32") return 4;
  if (dtype == "F16" || dtype == "BF16" || dtype == "I16" || dtype == "U16") return 2;
  if (dtype == "BOOL" || dtype == "I8" || dtype == "U8" || dtype.starts_with("F8_")) return 1;
  return 0;
}

std::vector<SafetensorsEntry> safetensorsEntries(const ModelSpec& model) {
  std::vector<SafetensorsEntry> entries;
  uint64_t at = 0;
  for (const TensorSpec& tensor : model.tensors) {
    const uint64_t end = at + tensor.elementCount() * dtypeBytes(tensor.dtype);
    entries.push_back({tensor.name, std::string(fileName(tensor.dtype)), tensor.shape, at, end});
    at = end;
  }
  return entries;
}

std::string SafetensorsEntry::toString() const {
  return printable(name) + " " + printable(dtype, 20) + "[" +
         joined(shape, ",", [](uint64_t extent) { return std::to_string(extent); }) + "]";
}

Result<std::vector<SafetensorsEntry>> parseSafetensorsHeader(std::string_view text, uint64_t dataBytes) {
  const auto bad = [](std::string why) { return Error{ErrorCode::io, std::move(why)}; };
  const auto header = parseJson(text, "its header");
  if (!header.ok()) return bad(header.message());
  if (!header->is_object()) return bad("its header is not a JSON object");
  std::vector<SafetensorsEntry> entries;
  try {
    for (const auto& [name, value] : header->items()) {
      if (name == kReservedName) continue;
      PSD_ASSIGN_OR_RETURN(SafetensorsEntry entry, readEntry(name, value, dataBytes));
      entries.push_back(std::move(entry));
    }
  } catch (const nlohmann::json::exception&) {
    return bad("its header is not a valid safetensors header");
  }
  std::ranges::sort(entries, {},
                    [](const SafetensorsEntry& entry) { return std::pair(entry.begin, entry.end); });
  const SafetensorsEntry* before = nullptr;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.begin == entry.end) continue;
    if (before != nullptr && entry.begin < before->end) {
      return bad("tensors '" + printable(before->name) + "' and '" + printable(entry.name) + "' overlap");
    }
    before = &entry;
  }
  return entries;
}

Result<SafetensorsReader> SafetensorsReader::open(Env& env, const std::string& path, Takes takes) {
  auto bad = [&](const std::string& why) {
    return Error{ErrorCode::io, "'" + path + "' is not a safetensors file that psd can read: " + why};
  };
  PSD_ASSIGN_OR_RETURN(std::unique_ptr<ReadableFile> file, env.open(path));
  uint64_t headerBytes = 0;
  if (file->size() < sizeof headerBytes) return bad("shorter than 8 bytes");
  PSD_RETURN_IF_ERROR(file->read(0, std::as_writable_bytes(std::span(&headerBytes, 1))));
  if (headerBytes > kHeaderBytesMax || headerBytes > file->size() - sizeof headerBytes) {
    return bad("its header length does not fit the file");
  }
  std::string text(headerBytes, '\0');
  PSD_RETURN_IF_ERROR(file->read(sizeof headerBytes, std::as_writable_bytes(std::span(text))));
  uint64_t dataBegin = sizeof headerBytes + headerBytes;

  auto entries = parseSafetensorsHeader(text, file->size() - dataBegin);
  if (!entries.ok()) return bad(entries.message());
  SafetensorsReader reader;
  reader.dataBegin_ = dataBegin;
  const std::set<std::string> buffers = bufferNames(text);
  for (SafetensorsEntry& entry : *entries) {
    if (buffers.contains(entry.name)) {
      reader.buffers_.push_back(std::move(entry));
      continue;
    }
    const std::optional<DType> dtype = dtypeOf(entry.dtype, takes == Takes::floatsAndIntegers);
    std::string why = unreadable(entry, dtype);
    if (!why.empty()) {
      reader.unread_.push_back({std::move(entry), std::move(why)});
      continue;
    }
    TensorSpec tensor{entry.name, *dtype, entry.shape};
    reader.places_.emplace(tensor.name, reader.beginBytes_.size());
    reader.beginBytes_.push_back(dataBegin + entry.begin);
    reader.model_.tensors.push_back(std::move(tensor));
  }
  if (reader.model_.empty()) {
    return bad(reader.unread_.empty() ? "it holds no tensor" : reader.describeUnread());
  }
  if (auto status = validateModel(reader.model_); !status.ok()) return bad(status.message());
  reader.model_.name = path;
  reader.path_ = path;
  reader.file_ = std::move(file);
  return reader;
}

std::string SafetensorsReader::describeUnread() const {
  std::string text = joined(
      std::span(unread_).first(std::min(unread_.size(), kUnreadListed)), ", ",
      [](const Unread& each) { return "tensor " + each.entry.toString() + " is not read: " + each.why; });
  if (unread_.size() > kUnreadListed)
    text += ", and " + std::to_string(unread_.size() - kUnreadListed) + " more";
  return text;
}

std::optional<size_t> SafetensorsReader::find(std::string_view name) const {
  const auto found = places_.find(std::string(name));
  return found == places_.end() ? std::nullopt : std::optional(found->second);
}

Result<size_t> SafetensorsReader::find(const TensorSpec& tensor) const {
  const auto bad = [&](const std::string& why) {
    return Error{ErrorCode::modelMismatch, "tensor " + tensor.toString() + ": " + why};
  };
  const std::string in = "in '" + path_ + "'";
  if (const auto index = find(std::string_view(tensor.name))) {
    const TensorSpec& found = model_.tensors[*index];
    const bool converts = found.dtype != DType::u64 && tensor.dtype != DType::u64;
    if (found.shape == tensor.shape && (converts || found.dtype == tensor.dtype)) return *index;
    return bad("is " + found.toString() + " " + in);
  }
  const auto unread =
      std::ranges::find(unread_, tensor.name, [](const Unread& each) { return each.entry.name; });
  if (unread == unread_.end()) return bad("not " + in);
  return bad("is " + unread->entry.toString() + " " + in + "; " + unread->why);
}

Status SafetensorsReader::read(size_t index, uint64_t offset, std::span<float> into) const {
  const DType dtype = model_.tensors[index].dtype;
  const uint64_t at = beginBytes_[index] + offset * dtypeBytes(dtype);
  const Codec* const codec = codecOf(dtype);
  if (!codec) return file_->read(at, std::as_writable_bytes(into));
  std::vector<uint16_t> halves(into.size());
  PSD_RETURN_IF_ERROR(file_->read(at, std::as_writable_bytes(std::span(halves))));
  codec->decode(std::as_bytes(std::span(halves)), halves.size(), 0, into);
  return {};
}

Status SafetensorsReader::read(size_t index, uint64_t offset, std::span<uint64_t> into) const {
  return file_->read(beginBytes_[index] + offset * sizeof(uint64_t), std::as_writable_bytes(into));
}

namespace {

Status appendValues(WritableFile& file, const TensorSpec& tensor, std::span<const float> values) {
  const Codec* const codec = codecOf(tensor.dtype);
  if (!codec) return file.append(std::as_bytes(values));
  std::vector<std::byte> bytes(codec->encodedBytes(values.size()));
  if (const Status encoded = codec->encode(values, 0, bytes.data()); !encoded.ok()) {
    return {encoded.error().code, "tensor " + tensor.toString() + ": " + encoded.message()};
  }
  return file.append(bytes);
}

}  // namespace

Status SafetensorsReader::read(const SafetensorsEntry& buffer, std::span<std::byte> into) const {
  return file_->read(dataBegin_ + buffer.begin, into);
}

struct SafetensorsHead::Header {
  Json json = Json::object();
};

SafetensorsHead::SafetensorsHead() : header_(std::make_unique<Header>()) {}
SafetensorsHead::~SafetensorsHead() = default;

void SafetensorsHead::addMetadata(const std::map<std::string, std::string>& metadata) {
  for (const auto& [key, value] : metadata) header_->json[std::string(kReservedName)][key] = value;
}

void SafetensorsHead::add(const std::string& name, std::string_view dtype, const std::vector<uint64_t>& shape,
                          uint64_t bytes) {
  const uint64_t end = offset_ + bytes;
  appendMember(header_->json, name, {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {offset_, end}}});
  offset_ = end;
}

void SafetensorsHead::add(const ModelSpec& model) {
  for (const SafetensorsEntry& entry : safetensorsEntries(model)) add(entry);
}

std::string SafetensorsHead::text(uint64_t leastBytes) const {
  std::string header = jsonText(header_->json);
  uint64_t bytes = std::max(header.size(), leastBytes - std::min(leastBytes, sizeof leastBytes));
  bytes = (bytes + 7) / 8 * 8;  // the data begins 8-aligned
  header.resize(bytes, ' ');
  std::string text(sizeof bytes, '\0');
  std::memcpy(text.data(), &bytes, sizeof bytes);
  return text + header;
}

Status writeSafetensorsHead(WritableFile& file, const ModelSpec& model,
                            const std::map<std::string, std::string>& metadata) {
  SafetensorsHead head;
  head.addMetadata(metadata);
  head.add(model);
  const std::string text = head.text();
  return file.append(std::as_bytes(std::span(text)));
}

Status writeTensors(WritableFile& file, const ModelSpec& model, const TensorSource& source) {
  for (size_t i = 0; i < model.tensors.size(); i++) {
    uint64_t written = 0;
    PSD_RETURN_IF_ERROR(source(i, [&](std::span<const float> values) {
      written += values.size();
      return appendValues(file, model.tensors[i], values);
    }));
    if (written != model.tensors[i].elementCount()) {
      return {ErrorCode::internal, "tensor '" + printable(model.tensors[i].name) +
                                       "': " + std::to_string(written) + " elements to save instead of " +
                                       std::to_string(model.tensors[i].elementCount())};
    }
  }
  return {};
}

Status writeSafetensors(WritableFile& file, const ModelSpec& model,
                        const std::map<std::string, std::string>& metadata, const TensorSource& source) {
  PSD_RETURN_IF_ERROR(writeSafetensorsHead(file, model, metadata));
  return writeTensors(file, model, source);
}

}  // namespace psd

#include "common/safetensors/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include <nlohmann/json.hpp>

#include "common/config/json_file.h"
#include "common/text/text.h"

namespace psd {
namespace {

using Json = nlohmann::ordered_json;
static_assert(std::endian::native == std::endian::little, "safetensors files are little endian");

constexpr uint64_t kHeaderBytesMax = 100'000'000;  // the format's own limit

struct Entry {
  TensorSpec spec;
  uint64_t begin = 0, end = 0;
};

/// Keys in a tree: a header has one for each tensor, of which there may be many.
using Header = nlohmann::json;

/// A list of whole numbers; throws nlohmann's type_error on anything else, which get() would convert.
std::vector<uint64_t> readSizes(const Header& list) {
  const auto& items = list.get_ref<const Header::array_t&>();
  std::vector<uint64_t> sizes;
  for (const Header& item : items) sizes.push_back(item.get_ref<const Header::number_unsigned_t&>());
  return sizes;
}

/// One tensor of the header; throws nlohmann's exceptions on wrong types.
Result<Entry> readEntry(const std::string& name, const Header& value, uint64_t dataBytes,
                        SafetensorsReader::Takes takes) {
  auto bad = [&](const std::string& why) {
    return Error{ErrorCode::io, "tensor '" + printable(name) + "': " + why};
  };
  std::string dtype = value.at("dtype").get<std::string>();
  const bool integers = takes == SafetensorsReader::Takes::floatsAndIntegers && dtype == "U64";
  if (dtype != "F32" && !integers) return bad("dtype is " + dtype + "; psd reads F32");
  Entry entry;
  entry.spec = {name, integers ? DType::u64 : DType::f32, readSizes(value.at("shape"))};
  const uint64_t elementBytes = dtypeBytes(entry.spec.dtype);
  auto offsets = readSizes(value.at("data_offsets"));
  if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > dataBytes) {
    return bad("data_offsets lie outside the file");
  }
  entry.begin = offsets[0];
  entry.end = offsets[1];
  if (auto status = validateModel({"", {entry.spec}}); !status.ok()) return status.error();
  if ((entry.end - entry.begin) / elementBytes != entry.spec.elementCount() ||
      (entry.end - entry.begin) % elementBytes != 0) {
    return bad("data_offsets do not match its shape");
  }
  return entry;
}

Result<std::vector<Entry>> readEntries(const Header& header, uint64_t dataBytes,
                                       SafetensorsReader::Takes takes) {
  std::vector<Entry> entries;
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") continue;
    PSD_ASSIGN_OR_RETURN(Entry entry, readEntry(name, value, dataBytes, takes));
    entries.push_back(std::move(entry));
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < entries.size(); i++) {
    if (entries[i].begin < entries[i - 1].end) {
      return Error{ErrorCode::io, "tensors '" + printable(entries[i - 1].spec.name) + "' and '" +
                                      printable(entries[i].spec.name) + "' overlap"};
    }
  }
  return entries;
}

}  // namespace

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

  SafetensorsReader reader;
  try {
    Header header = Header::parse(text);
    if (!header.is_object()) return bad("its header is not a JSON object");
    auto entries = readEntries(header, file->size() - dataBegin, takes);
    if (!entries.ok()) return bad(entries.message());
    for (Entry& entry : *entries) {
      reader.places_.emplace(entry.spec.name, reader.beginBytes_.size());
      reader.beginBytes_.push_back(dataBegin + entry.begin);
      reader.model_.tensors.push_back(std::move(entry.spec));
    }
  } catch (const nlohmann::json::exception&) {
    return bad("its header is not valid JSON of the safetensors form");
  }
  if (auto status = validateModel(reader.model_); !status.ok()) return bad(status.message());
  reader.model_.name = path;
  reader.path_ = path;
  reader.file_ = std::move(file);
  return reader;
}

std::optional<size_t> SafetensorsReader::find(std::string_view name) const {
  const auto found = places_.find(std::string(name));
  return found == places_.end() ? std::nullopt : std::optional(found->second);
}

Status SafetensorsReader::read(size_t index, uint64_t offset, std::span<float> into) const {
  return file_->read(beginBytes_[index] + offset * sizeof(float), std::as_writable_bytes(into));
}

Status SafetensorsReader::read(size_t index, uint64_t offset, std::span<uint64_t> into) const {
  return file_->read(beginBytes_[index] + offset * sizeof(uint64_t), std::as_writable_bytes(into));
}

Status writeSafetensorsHead(WritableFile& file, const ModelSpec& model,
                            const std::map<std::string, std::string>& metadata) {
  Json header = Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  uint64_t offset = 0;
  for (const TensorSpec& tensor : model.tensors) {
    uint64_t end = offset + tensor.elementCount() * dtypeBytes(tensor.dtype);
    appendMember(header, tensor.name,
                 {{"dtype", tensor.dtype == DType::u64 ? "U64" : "F32"},
                  {"shape", tensor.shape},
                  {"data_offsets", {offset, end}}});
    offset = end;
  }
  std::string text = jsonText(header);
  text.resize((text.size() + 7) / 8 * 8, ' ');  // the data begins 8-aligned
  uint64_t headerBytes = text.size();
  PSD_RETURN_IF_ERROR(file.append(std::as_bytes(std::span(&headerBytes, 1))));
  return file.append(std::as_bytes(std::span(text)));
}

Status writeSafetensors(WritableFile& file, const ModelSpec& model,
                        const std::map<std::string, std::string>& metadata, const TensorSource& source) {
  PSD_RETURN_IF_ERROR(writeSafetensorsHead(file, model, metadata));
  for (size_t i = 0; i < model.tensors.size(); i++) {
    uint64_t written = 0;
    PSD_RETURN_IF_ERROR(source(i, [&](std::span<const float> values) {
      written += values.size();
      return file.append(std::as_bytes(values));
    }));
    if (written != model.tensors[i].elementCount()) {
      return {ErrorCode::internal, "tensor '" + printable(model.tensors[i].name) +
                                       "': " + std::to_string(written) + " elements to save instead of " +
                                       std::to_string(model.tensors[i].elementCount())};
    }
  }
  return {};
}

}  // namespace psd

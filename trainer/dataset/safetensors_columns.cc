#include <algorithm>
#include <cstring>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/config/json_file.h"
#include "common/text/text.h"
#include "trainer/dataset/mapped_file.h"
#include "trainer/dataset/stored_columns.h"

namespace psd {
namespace {

constexpr uint64_t kHeaderBytesMax = 100'000'000;  // the format's own limit
constexpr StoredType kTensorTypes[] = {{"F32", ElementType::f32}, {"F64", ElementType::f64},
                                       {"I32", ElementType::i32}, {"I64", ElementType::i64},
                                       {"U8", ElementType::u8},   {"BOOL", ElementType::u8}};

/// Throws nlohmann's exceptions on wrong types.
Status addTensor(StoredColumns& columns, const std::string& name, const nlohmann::ordered_json& entry,
                 std::span<const std::byte> data) {
  const std::string what = "tensor '" + printable(name, 60) + "'";
  const auto sizes = [&](const char* key) {
    std::vector<uint64_t> list;
    for (const auto& each : entry.at(key))
      list.push_back(each.get_ref<const nlohmann::ordered_json::number_unsigned_t&>());
    return list;
  };
  const auto type = entry.at("dtype").get<std::string>();
  const std::vector<uint64_t> offsets = sizes("data_offsets");
  if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > data.size()) {
    return {ErrorCode::io, what + " lies outside the file"};
  }
  std::optional<ElementType> known;
  for (const StoredType& each : kTensorTypes) {
    if (each.name == type) known = each.type;
  }
  return addColumn(columns, name, known, type, sizes("shape"),
                   data.subspan(offsets[0], offsets[1] - offsets[0]), what);
}

}  // namespace

Result<StoredColumns> readSafetensorsColumns(const std::string& path) {
  PSD_ASSIGN_OR_RETURN(const auto file, MappedFile::open(path));
  const auto bad = [&](const std::string& why) {
    return Error{ErrorCode::io, path + ": no safetensors file of columns: " + why};
  };
  const std::span<const std::byte> bytes = file->bytes();
  uint64_t headerBytes = 0;
  if (bytes.size() < sizeof headerBytes) return bad("shorter than 8 bytes");
  std::memcpy(&headerBytes, bytes.data(), sizeof headerBytes);
  if (headerBytes > kHeaderBytesMax || headerBytes > bytes.size() - sizeof headerBytes) {
    return bad("its header length does not fit the file");
  }
  const std::string_view header(reinterpret_cast<const char*>(bytes.data()) + sizeof headerBytes,
                                headerBytes);
  const auto document = parseJson(header, "its header");
  if (!document.ok()) return bad(document.message());
  StoredColumns columns;
  try {
    for (const auto& [name, entry] : document->items()) {
      if (name == "__metadata__") continue;
      const Status added = addTensor(columns, name, entry, bytes.subspan(sizeof headerBytes + headerBytes));
      if (!added.ok()) return bad(added.message());
    }
  } catch (const nlohmann::json::exception&) {
    return bad("its header is not of the safetensors form");
  }
  if (columns.columns.empty()) return bad("it holds no tensor");
  columns.memory.push_back(file);
  return columns;
}

}  // namespace psd

#include <cstring>

#include "common/safetensors/safetensors.h"
#include "common/text/text.h"
#include "trainer/dataset/mapped_file.h"
#include "trainer/dataset/stored_columns.h"

namespace psd {
namespace {

constexpr uint64_t kHeaderBytesMax = 100'000'000;  // the format's own limit
constexpr StoredType kTensorTypes[] = {{"F32", ElementType::f32}, {"F64", ElementType::f64},
                                       {"I32", ElementType::i32}, {"I64", ElementType::i64},
                                       {"U8", ElementType::u8},   {"BOOL", ElementType::u8}};

std::optional<ElementType> elementTypeOf(std::string_view dtype) {
  for (const StoredType& each : kTensorTypes) {
    if (each.name == dtype) return each.type;
  }
  return {};
}

}  // namespace

Result<StoredColumns> readSafetensorsColumns(const std::string& path) {
  PSD_ASSIGN_OR_RETURN(const auto file, MappedFile::open(path));
  const auto bad = [&](const std::string& why) {
    return Error{ErrorCode::io, path + ": not a safetensors file of columns: " + why};
  };
  const std::span<const std::byte> bytes = file->bytes();
  uint64_t headerBytes = 0;
  if (bytes.size() < sizeof headerBytes) return bad("shorter than 8 bytes");
  std::memcpy(&headerBytes, bytes.data(), sizeof headerBytes);
  if (headerBytes > kHeaderBytesMax || headerBytes > bytes.size() - sizeof headerBytes) {
    return bad("its header length does not fit the file");
  }
  const auto data = bytes.subspan(sizeof headerBytes + headerBytes);
  const auto entries = parseSafetensorsHeader(
      {reinterpret_cast<const char*>(bytes.data()) + sizeof headerBytes, headerBytes}, data.size());
  if (!entries.ok()) return bad(entries.message());
  if (entries->empty()) return bad("it holds no tensor");
  StoredColumns columns;
  for (const SafetensorsEntry& entry : *entries) {
    PSD_RETURN_IF_ERROR(addColumn(columns, entry.name, elementTypeOf(entry.dtype), entry.dtype, entry.shape,
                                  data.subspan(entry.begin, entry.end - entry.begin),
                                  path + ": tensor '" + printable(entry.name, 60) + "'"));
  }
  PSD_RETURN_IF_ERROR(finishColumns(columns));
  columns.memory.push_back(file);
  return columns;
}

}  // namespace psd

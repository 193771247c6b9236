#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>

#include <fmt/format.h>

#include "common/text/text.h"
#include "trainer/dataset/mapped_file.h"
#include "trainer/dataset/stored_columns.h"

namespace psd {
namespace {

constexpr std::string_view kNpyMagic = "\x93NUMPY";
constexpr StoredType kNpyTypes[] = {{"<f4", ElementType::f32}, {"<f8", ElementType::f64},
                                    {"<i4", ElementType::i32}, {"<i8", ElementType::i64},
                                    {"|u1", ElementType::u8},  {"|b1", ElementType::u8}};

/// The header that numpy.save() writes: a Python dict with three keys.
struct NpyHeader {
  std::string type;
  bool fortran = false;
  std::vector<uint64_t> extents;
};

/// The value after a key, up to `end`; empty if the key is missing.
std::string_view npyValue(std::string_view header, std::string_view key, std::string_view begin,
                          std::string_view end) {
  size_t at = header.find(key);
  if (at == std::string_view::npos) return {};
  at = header.find(begin, at + key.size());
  if (at == std::string_view::npos) return {};
  const size_t stop = header.find(end, at + begin.size());
  return stop == std::string_view::npos ? std::string_view()
                                        : header.substr(at + begin.size(), stop - at - begin.size());
}

std::optional<NpyHeader> parseNpyHeader(std::string_view text) {
  NpyHeader header;
  header.type = npyValue(text, "'descr':", "'", "'");
  const std::string_view fortran = npyValue(text, "'fortran_order':", " ", ",");
  const size_t shapeAt = text.find("'shape':");
  if (header.type.empty() || (fortran != "True" && fortran != "False") || shapeAt == std::string_view::npos) {
    return {};
  }
  header.fortran = fortran == "True";
  std::string_view shape = npyValue(text, "'shape':", "(", ")");
  while (!shape.empty()) {
    uint64_t extent = 0;
    const auto [stop, error] = std::from_chars(shape.data(), shape.data() + shape.size(), extent);
    if (error != std::errc()) return {};
    header.extents.push_back(extent);
    shape.remove_prefix(static_cast<size_t>(stop - shape.data()));
    if (shape.starts_with('L')) shape.remove_prefix(1);  // a long integer of Python 2
    while (!shape.empty() && (shape[0] == ',' || shape[0] == ' ')) shape.remove_prefix(1);
  }
  return header;
}

Status addNpy(StoredColumns& columns, const std::string& path) {
  PSD_ASSIGN_OR_RETURN(const auto file, MappedFile::open(path));
  const std::span<const std::byte> bytes = file->bytes();
  const Error none{ErrorCode::io, path + ": not a numpy.save() file: its header is damaged"};
  constexpr size_t kLengthAt = 8;
  if (bytes.size() < kLengthAt + 4 || std::memcmp(bytes.data(), kNpyMagic.data(), kNpyMagic.size()) != 0)
    return none;
  const bool isFirstVersion = bytes[kNpyMagic.size()] == std::byte{1};
  const size_t lengthBytes = isFirstVersion ? 2 : 4;
  uint32_t length = 0;
  std::memcpy(&length, bytes.data() + kLengthAt, lengthBytes);
  const size_t begin = kLengthAt + lengthBytes;
  if (length > bytes.size() - begin) return none;
  const auto header = parseNpyHeader({reinterpret_cast<const char*>(bytes.data() + begin), length});
  if (!header) return none;
  std::optional<ElementType> type;
  for (const StoredType& known : kNpyTypes) {
    if (known.name == header->type) type = known.type;
  }
  const std::string name = std::filesystem::path(path).stem();
  const auto taken = [&](const StoredColumn& each) { return each.column.name == name; };
  if (std::ranges::any_of(columns.columns, taken) || columns.skipped.contains(name)) {
    return Error{ErrorCode::io,
                 fmt::format("{}: a second column '{}'; expected files of different names", path, name)};
  }
  if (header->fortran && header->extents.size() > 1) {
    columns.skipped[name] = path + ": Fortran order; expected C order (numpy.ascontiguousarray)";
    return {};
  }
  columns.memory.push_back(file);
  return addColumn(columns, name, type, header->type, header->extents, bytes.subspan(begin + length),
                   path + ": the array");
}

}  // namespace

Result<StoredColumns> readNpyColumns(const std::vector<std::string>& paths) {
  StoredColumns columns;
  for (const std::string& path : paths) PSD_RETURN_IF_ERROR(addNpy(columns, path));
  PSD_RETURN_IF_ERROR(finishColumns(columns));
  return columns;
}

}  // namespace psd

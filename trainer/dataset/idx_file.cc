#include "trainer/dataset/idx_file.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <span>

#include <zlib.h>

namespace psd {
namespace {

constexpr uint8_t kUnsignedByte = 0x08;
constexpr size_t kPieceBytes = 1 << 20;
constexpr uint64_t kArrayBytesMax = 1ull << 32;

struct CloseGzip {
  void operator()(gzFile file) const { gzclose(file); }
};
using GzipFile = std::unique_ptr<gzFile_s, CloseGzip>;

Error problem(const std::string& path, const std::string& what) {
  return {ErrorCode::io, path + ": " + what};
}

Error readFailure(gzFile file, const std::string& path) {
  int code = Z_OK;
  const char* why = gzerror(file, &code);
  if (code == Z_ERRNO) return {ErrorCode::io, path + ": " + std::strerror(errno)};
  return problem(path,
                 std::string("damaged or truncated gzip data (") + why + "); expected a complete .gz file");
}

/// Reads up to into.size() bytes (zlib passes plain files through); fewer only at the end of the file.
Result<size_t> readUpTo(gzFile file, const std::string& path, std::span<uint8_t> into) {
  size_t done = 0;
  while (done < into.size()) {
    const auto piece = static_cast<unsigned>(std::min(into.size() - done, kPieceBytes));
    const int got = gzread(file, into.data() + done, piece);
    if (got < 0) return readFailure(file, path);
    if (got == 0) {
      int code = Z_OK;
      gzerror(file, &code);
      if (code != Z_OK) return readFailure(file, path);  // truncated compressed data
      break;
    }
    done += static_cast<size_t>(got);
  }
  return done;
}

std::string hexMagic(std::span<const uint8_t> magic) {
  char text[16];
  std::snprintf(text, sizeof text, "0x%02x%02x%02x%02x", magic[0], magic[1], magic[2], magic[3]);
  return text;
}

Status checkMagic(const std::string& path, std::span<const uint8_t> magic, uint8_t rank) {
  const uint8_t expected[4] = {0, 0, kUnsignedByte, rank};
  if (std::equal(magic.begin(), magic.end(), expected)) return {};
  return problem(path, "begins with " + hexMagic(magic) + "; expected " + hexMagic(expected) +
                           ", an IDX file of unsigned bytes with " + std::to_string(rank) +
                           (rank == 1 ? " dimension" : " dimensions"));
}

uint32_t bigEndian(const uint8_t* bytes) {
  return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | bytes[3];
}

/// The product of the dimensions; an error above kArrayBytesMax.
Result<uint64_t> arrayBytes(const IdxFile& file) {
  uint64_t total = 1;
  for (uint32_t extent : file.dimensions) {
    if (extent != 0 && total > kArrayBytesMax / extent) {
      return problem(file.path, "its header announces more than " + std::to_string(kArrayBytesMax) +
                                    " bytes; expected fewer");
    }
    total *= extent;
  }
  return total;
}

Error truncated(const std::string& path, uint64_t got, uint64_t expected, const char* what) {
  return problem(path, "ends after " + std::to_string(got) + " of " + std::to_string(expected) + " " + what +
                           " bytes; the file is truncated");
}

}  // namespace

Result<IdxFile> readIdxFile(const std::string& path, uint8_t rank) {
  errno = 0;
  GzipFile file(gzopen(path.c_str(), "rb"));
  if (!file) return Error{ErrorCode::io, path + ": " + std::strerror(errno)};
  gzbuffer(file.get(), 128 << 10);

  IdxFile array{path, {}, {}};
  std::vector<uint8_t> header(4 + 4 * size_t{rank});
  PSD_ASSIGN_OR_RETURN(const size_t headerBytes, readUpTo(file.get(), path, header));
  if (headerBytes >= 4) {
    PSD_RETURN_IF_ERROR(checkMagic(path, std::span(header).first(4), rank));
  }
  if (headerBytes < header.size()) return truncated(path, headerBytes, header.size(), "header");
  for (size_t i = 0; i < rank; ++i) array.dimensions.push_back(bigEndian(&header[4 + 4 * i]));

  PSD_ASSIGN_OR_RETURN(const uint64_t expected, arrayBytes(array));
  while (array.bytes.size() < expected) {
    const size_t before = array.bytes.size();
    // Doubling limits the copies; memory grows only with the bytes that were read.
    const uint64_t step = std::max<uint64_t>(kPieceBytes, before);
    array.bytes.resize(std::min<uint64_t>(expected, before + step));
    PSD_ASSIGN_OR_RETURN(const size_t got,
                         readUpTo(file.get(), path, std::span(array.bytes).subspan(before)));
    if (before + got < array.bytes.size()) return truncated(path, before + got, expected, "data");
  }
  uint8_t beyond = 0;
  PSD_ASSIGN_OR_RETURN(const size_t extra, readUpTo(file.get(), path, std::span(&beyond, 1)));
  if (extra != 0) {
    return problem(path, "continues after the " + std::to_string(expected) +
                             " data bytes that its header announces; expected the end of the file");
  }
  return array;
}

}  // namespace psd

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/status/status.h"

namespace psd {

/// An array of unsigned bytes as the IDX format holds it. A value type.
struct IdxFile {
  std::string path;
  std::vector<uint32_t> dimensions;
  std::vector<uint8_t> bytes;  ///< row-major, as many as the product of `dimensions`
};

/// Reads an IDX file of unsigned bytes with `rank` dimensions, plain or gzip-compressed. Layout, all
/// numbers big-endian: 0, 0, 0x08 (unsigned byte), rank; one uint32 per dimension; the bytes. Memory
/// is taken as the data arrives, so that a header which lies about its size costs nothing. An error
/// names the file, what is wrong and what would be right.
Result<IdxFile> readIdxFile(const std::string& path, uint8_t rank);

}  // namespace psd

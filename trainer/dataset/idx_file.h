#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/status/status.h"

namespace psd {

/// An array of unsigned bytes from an IDX file. A value type.
struct IdxFile {
  std::string path;
  std::vector<uint32_t> dimensions;
  std::vector<uint8_t> bytes;  ///< row-major; its size is the product of `dimensions`
};

/// Reads an IDX file of unsigned bytes with `rank` dimensions, plain or gzip-compressed. Layout, all numbers
/// big-endian: 0, 0, 0x08 (unsigned byte), rank; one uint32 per dimension; the bytes. Memory is allocated as
/// data is read, so a wrong size in the header allocates nothing. Errors name the file, the problem and the
/// expected value.
Result<IdxFile> readIdxFile(const std::string& path, uint8_t rank);

}  // namespace psd

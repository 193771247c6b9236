#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <zlib.h>

#include "test/support/catch.h"
#include "test/support/temp_dir.h"

namespace psd::testing {

inline std::string bigEndian(uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16), static_cast<char>(value >> 8),
          static_cast<char>(value)};
}

/// The bytes of an IDX file of unsigned bytes.
inline std::string idxBytes(const std::vector<uint32_t>& dimensions, const std::string& data) {
  std::string bytes{0, 0, 8, static_cast<char>(dimensions.size())};
  for (const uint32_t extent : dimensions) bytes += bigEndian(extent);
  return bytes + data;
}

inline void writeGzip(const std::string& path, const std::string& bytes) {
  gzFile file = gzopen(path.c_str(), "wb");
  REQUIRE(file != nullptr);
  REQUIRE(gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size())) == static_cast<int>(bytes.size()));
  REQUIRE(gzclose(file) == Z_OK);
}

/// Writes a valid small MNIST set: every pixel of image i is i, its label is i mod 10.
inline void writeTinyMnist(const TempDir& folder, uint32_t trainImages, uint32_t testImages) {
  for (const auto& [prefix, count] : {std::pair<std::string, uint32_t>{"train", trainImages},
                                      std::pair<std::string, uint32_t>{"t10k", testImages}}) {
    std::string pixels, labels;
    for (uint32_t i = 0; i < count; ++i) {
      pixels += std::string(28 * 28, static_cast<char>(i));
      labels += static_cast<char>(i % 10);
    }
    writeFile(folder.file(prefix + "-images-idx3-ubyte"), idxBytes({count, 28, 28}, pixels));
    writeFile(folder.file(prefix + "-labels-idx1-ubyte"), idxBytes({count}, labels));
  }
}

}  // namespace psd::testing

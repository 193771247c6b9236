#include "common/checksum/crc32c.h"

#include <string>

#include "test/support/catch.h"
#include "test/support/random.h"

namespace psd::checksum_crc32c_test {
namespace {

uint32_t crcOf(const std::string& text, uint32_t previous = 0) {
  return crc32c(std::as_bytes(std::span(text)), previous);
}

TEST_CASE("CRC-32C of the published examples") {
  CHECK(crcOf("") == 0);
  CHECK(crcOf("123456789") == 0xe3069283);
  // RFC 3720, B.4
  CHECK(crcOf(std::string(32, '\0')) == 0x8a9136aa);
  CHECK(crcOf(std::string(32, '\xff')) == 0x62a8ab43);
  CHECK(crcText(0xe3069) == "000e3069");
}

TEST_CASE("CRC-32C of pieces equals that of the whole, with the instruction and with tables") {
  testing::Random random(7);
  for (int round = 0; round < 200; round++) {
    std::string bytes(random.below(300), '\0');
    for (char& byte : bytes) byte = static_cast<char>(random.below(256));
    const size_t cut = random.below(bytes.size() + 1);
    REQUIRE(crcOf(bytes.substr(cut), crcOf(bytes.substr(0, cut))) == crcOf(bytes));
    REQUIRE(detail::crc32cWithTables(std::as_bytes(std::span(bytes))) == crcOf(bytes));
  }
}

TEST_CASE("CRC-32C of long bytes, of which pieces are computed side by side") {
  testing::Random random(8);
  std::string bytes((1 << 20) + 100, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random.below(256));
  // About 3 times 256, 4096 and 131072, and what is left of each.
  for (const size_t size : {767, 768, 769, 3 * 4096 - 1, 3 * 4096, 3 * 4096 + 777, 3 * 131072 - 8, 3 * 131072,
                            3 * 131072 + 3 * 4096 + 3 * 256 + 13, 2 * 3 * 131072 + 4000}) {
    const auto some = std::as_bytes(std::span(bytes)).subspan(random.below(100), size);
    const auto previous = static_cast<uint32_t>(random.below(UINT32_MAX));
    CAPTURE(size, previous);
    CHECK(crc32c(some, previous) == detail::crc32cWithTables(some, previous));
  }
}

}  // namespace
}  // namespace psd::checksum_crc32c_test

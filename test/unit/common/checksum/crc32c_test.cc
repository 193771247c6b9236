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

}  // namespace
}  // namespace psd::checksum_crc32c_test

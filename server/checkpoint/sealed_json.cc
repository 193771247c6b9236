#include "server/checkpoint/sealed_json.h"

#include <cstdlib>
#include <span>

#include "common/checksum/crc32c.h"
#include "common/config/json_file.h"

namespace psd {
namespace {

constexpr size_t kChecksumDigits = 8;

/// The text that follows the bytes covered by the checksum.
std::string sealOf(std::string_view covered, std::string_view key) {
  const std::string crc = crcText(crc32c(std::as_bytes(std::span(covered))));
  return "\n  \"" + std::string(key) + "\": \"" + crc + "\"\n}\n";
}

}  // namespace

std::string sealJson(const nlohmann::ordered_json& object, std::string_view checksumKey) {
  std::string text = jsonText(object, 2);
  text.resize(text.size() - 2);  // drops "\n}", to append the checksum
  text += ",";
  return text + sealOf(text, checksumKey);
}

Result<nlohmann::ordered_json> openSealedJson(std::string_view text, std::string_view checksumKey) {
  const auto bad = [](const char* why) { return Error{ErrorCode::io, why}; };
  const size_t sealBytes = sealOf("", checksumKey).size();
  if (text.size() < sealBytes) return bad("it is truncated");
  const std::string_view covered = text.substr(0, text.size() - sealBytes);
  if (text.substr(covered.size()) != sealOf(covered, checksumKey)) return bad("its checksum is wrong");
  auto document = nlohmann::ordered_json::parse(text, nullptr, false);
  if (!document.is_object()) return bad("it is not a JSON object");
  return document;
}

uint32_t readCrc(ObjectReader& in, std::string_view key) {
  const std::string digits = in.text(key, "");
  char* end = nullptr;
  const uint64_t value = std::strtoull(digits.c_str(), &end, 16);
  if (digits.size() != kChecksumDigits || *end != '\0') in.fail(key, "must be eight hexadecimal digits");
  return static_cast<uint32_t>(value);
}

}  // namespace psd

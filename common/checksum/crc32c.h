#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace psd {

/// CRC-32C (Castagnoli polynomial, as in iSCSI, RFC 3720, and ext4), with the processor's instruction if
/// available. `previous`: the checksum of the preceding bytes, for incremental computation. The checksum of
/// "123456789" is 0xe3069283.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t previous = 0);

namespace detail {
/// crc32c() without the processor's instruction; tests compare the two.
uint32_t crc32cWithTables(std::span<const std::byte> bytes, uint32_t previous = 0);
}  // namespace detail

/// Eight hexadecimal digits.
std::string crcText(uint32_t crc);

}  // namespace psd

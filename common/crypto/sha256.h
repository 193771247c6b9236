#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include "common/status/status.h"

namespace psd {

using Sha256 = std::array<unsigned char, 32>;

/// SHA-256 by OpenSSL's libcrypto, which is loaded on first use. Immutable; thread-safe.
class Hasher {
 public:
  /// ErrorCode::unavailable if libcrypto cannot be loaded.
  static Result<Hasher> make();

  Result<Sha256> sha256(std::string_view bytes) const;
  /// Compares in constant time.
  bool same(const Sha256& one, const Sha256& other) const;

 private:
  struct Functions;
  explicit Hasher(const Functions& functions) : functions_(&functions) {}
  const Functions* functions_;
};

/// Lower-case hexadecimal.
std::string hexOf(const Sha256& digest);
/// Fails (invalidArgument) on anything but 64 hexadecimal digits.
Result<Sha256> sha256Of(std::string_view hex);

}  // namespace psd

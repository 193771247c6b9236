#include "common/crypto/sha256.h"

#include <charconv>

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include "common/crypto/loaded_library.h"
#include "common/crypto/openssl_version.h"

namespace psd {

struct Hasher::Functions {
  decltype(EVP_Digest)* digest = nullptr;
  decltype(EVP_sha256)* sha256 = nullptr;
  decltype(CRYPTO_memcmp)* compare = nullptr;
  Status status;

  Functions() {
    LoadedLibrary library("libcrypto.so." PSD_OPENSSL_VERSION, "libssl" PSD_OPENSSL_VERSION);
    library.find("EVP_Digest", digest);
    library.find("EVP_sha256", sha256);
    library.find("CRYPTO_memcmp", compare);
    status = library.status();
  }
};

Result<Hasher> Hasher::make() {
  static const Functions functions;
  if (!functions.status.ok()) return functions.status.error();
  return Hasher(functions);
}

Result<Sha256> Hasher::sha256(std::string_view bytes) const {
  Sha256 digest{};
  unsigned int length = 0;
  const int done =
      functions_->digest(bytes.data(), bytes.size(), digest.data(), &length, functions_->sha256(), nullptr);
  if (done != 1 || length != digest.size())
    return Error{ErrorCode::internal, "libcrypto failed to compute SHA-256"};
  return digest;
}

bool Hasher::same(const Sha256& one, const Sha256& other) const {
  return functions_->compare(one.data(), other.data(), one.size()) == 0;
}

std::string hexOf(const Sha256& digest) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (const unsigned char byte : digest) {
    hex += kDigits[byte >> 4];
    hex += kDigits[byte & 15];
  }
  return hex;
}

Result<Sha256> sha256Of(std::string_view hex) {
  const Error bad{ErrorCode::invalidArgument, "a SHA-256 has 64 hexadecimal digits"};
  Sha256 digest{};
  if (hex.size() != 2 * digest.size()) return bad;
  for (size_t i = 0; i < digest.size(); i++) {
    const char* const begin = hex.data() + 2 * i;
    const auto [end, error] = std::from_chars(begin, begin + 2, digest[i], 16);
    if (error != std::errc() || end != begin + 2) return bad;
  }
  return digest;
}

}  // namespace psd

#include "common/config/peer_keys.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

namespace psd {

std::vector<Address> readDialable(ConfigReader& in, const Key& key) {
  std::vector<std::string> texts;
  in.texts(key, texts);
  std::vector<Address> addresses;
  for (size_t i = 0; i < texts.size(); i++) {
    auto address = parseAddress(texts[i]);
    const std::string place = std::string(key.name) + "[" + std::to_string(i) + "]";
    if (!address.ok()) {
      in.fail(place, address.message());
    } else if (address->kind == Address::Kind::tcp && (address->port == 0 || address->host == "*")) {
      in.fail(place, "\"" + texts[i] + "\" cannot be dialled: it needs a host and a port");
    } else if (std::ranges::find(texts.begin(), texts.begin() + static_cast<std::ptrdiff_t>(i), texts[i]) !=
               texts.begin() + static_cast<std::ptrdiff_t>(i)) {
      in.fail(place, "\"" + texts[i] + "\" is named twice");
    } else {
      addresses.push_back(*std::move(address));
    }
  }
  return addresses;
}

CredentialFlags readCredentialKeys(ConfigReader& in, std::string_view object, std::string_view role,
                                   std::string_view peer) {
  const auto given = [&](std::string_view name, const std::string& text) {
    std::string value;
    in.path({name, text}, value);
    return value.empty() ? std::nullopt : std::optional(std::move(value));
  };
  const std::string whom(peer);
  CredentialFlags out;
  out.tokenFileFlag = std::string(object) + ".token_file";
  out.tokenFile = given("token_file", "Path of a file whose first line is the token, of role `" +
                                          std::string(role) + "`, that this daemon presents to " + whom +
                                          ". Empty: `PSD_TOKEN_FILE` or `PSD_TOKEN`.");
  out.tlsCa = given("tls_ca", "Path of the authorities that may sign the certificate of " + whom +
                                  " at `tls://`. Empty: `PSD_TLS_CA`, else those of the system.");
  out.tlsCertificate =
      given("tls_cert", "Path of this daemon's certificate for " + whom + ". Empty: `PSD_TLS_CERT`.");
  out.tlsKey = given("tls_key", "Path of that certificate's key. Empty: `PSD_TLS_KEY`.");
  return out;
}

}  // namespace psd

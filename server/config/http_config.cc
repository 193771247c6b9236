#include "server/config/http_config.h"

#include <string>

#include <arpa/inet.h>

namespace psd {

bool isOfThisMachine(const Address& address) {
  if (address.kind == Address::Kind::unixSocket || address.host == "localhost") return true;
  in_addr four{};
  in6_addr six{};
  if (inet_pton(AF_INET, address.host.c_str(), &four) == 1) return ntohl(four.s_addr) >> 24 == 127;
  return inet_pton(AF_INET6, address.host.c_str(), &six) == 1 && IN6_IS_ADDR_LOOPBACK(&six);
}

HttpConfig readHttp(ObjectReader in) {
  HttpConfig http;
  const std::vector<std::string> texts = in.texts("listen", {});
  for (size_t i = 0; i < texts.size(); i++) {
    const std::string key = "listen[" + std::to_string(i) + "]";
    Result<Address> address = parseAddress(texts[i]);
    if (!address.ok()) {
      in.fail(key, address.message());
    } else if (!isOfThisMachine(*address)) {
      in.fail(key, "\"" + texts[i] +
                       "\" can be reached from other machines, and whoever reaches it may stop the daemon; "
                       "take \"" +
                       kDefaultHttpAddress + "\", and from elsewhere ssh -L or a proxy that asks who it is");
    } else {
      http.listen.push_back(*std::move(address));
    }
  }
  http.connections = static_cast<uint32_t>(in.integer("connections", http.connections, 1, 4096));
  http.timeoutMs = in.integer("timeout_ms", http.timeoutMs, 100, 86'400'000);
  return http;
}

}  // namespace psd

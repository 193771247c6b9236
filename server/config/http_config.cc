#include "server/config/http_config.h"

#include <string>

namespace psd {

HttpConfig readHttp(ObjectReader in) {
  HttpConfig http;
  const std::vector<std::string> texts = in.texts("listen", {});
  for (size_t i = 0; i < texts.size(); i++) {
    const std::string key = "listen[" + std::to_string(i) + "]";
    Result<Address> address = parseAddress(texts[i]);
    if (!address.ok()) {
      in.fail(key, address.message());
    } else {
      http.listen.push_back(*std::move(address));
    }
  }
  http.connections = static_cast<uint32_t>(in.integer("connections", http.connections, 1, 4096));
  http.timeoutMs = in.integer("timeout_ms", http.timeoutMs, 100, 86'400'000);
  return http;
}

}  // namespace psd

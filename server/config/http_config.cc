#include "server/config/http_config.h"

#include <string>

#include "server/config/addresses.h"

namespace psd {

HttpConfig readHttp(ConfigReader in) {
  HttpConfig http;
  std::vector<std::string> texts;
  in.texts(
      {"listen",
       "Addresses: `tcp://localhost:5580`, `unix:///PATH`, or `tls://*:5580` for HTTPS with the certificate "
       "of `tls`. Other machines may reach it by `tls://` alone, with `auth` or `tls.require_client`, unless "
       "`insecure` is set. Without `auth` every client may do what an operator may. Empty: off."},
      texts, addressList());
  http.listen = parseAddresses(in, "listen", texts);
  in.integer({"connections",
              "Connections open at once; further ones are closed. Streams of events take at most three "
              "quarters of them."},
             http.connections, 1, 4096);
  in.integer({"timeout_ms",
              "Time for a TLS handshake, for a request to be complete after its connection opened or the "
              "previous answer was sent, and for a peer to read an answer or an event."},
             http.timeoutMs, 100, 86'400'000);
  return http;
}

}  // namespace psd

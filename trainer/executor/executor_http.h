#pragma once

#include <memory>
#include <string>
#include <vector>

#include <kj/async-io.h>
#include <kj/compat/http.h>

#include "common/http/host_names.h"
#include "common/http/http_listener.h"
#include "common/http/http_site.h"
#include "common/http/reply.h"
#include "common/tls/tls_context.h"
#include "trainer/executor/executor.h"
#include "trainer/executor/executor_server.h"

namespace psd {

/// The HTTP endpoints of an executor: health, readiness, metrics and status. Read-only. Used by the event
/// loop's thread.
class ExecutorHttp final : private HttpSite {
 public:
  /// The arguments outlive it. `tls`: for addresses with TLS; null if there are none.
  ExecutorHttp(kj::AsyncIoContext& io, const Executor& executor, const ExecutorServer& server,
               std::shared_ptr<const TlsContext> tls);

  Status start() { return listener_.start(); }
  std::vector<std::string> places() const { return listener_.places(); }

 private:
  kj::Promise<void> request(const HttpPeer& peer, kj::HttpMethod method, kj::StringPtr url,
                            const kj::HttpHeaders& headers, kj::AsyncInputStream& body,
                            Response& response) override;
  kj::Promise<void> ready(Response& response) const;
  static HttpListenerOptions optionsOf(const ExecutorConfig& config, std::shared_ptr<const TlsContext> tls);

  const Executor& executor_;
  const ExecutorServer& server_;
  const HostNames hosts_;
  kj::HttpHeaderTable::Builder builder_;
  const HttpHeaderNames names_;
  const kj::Own<kj::HttpHeaderTable> table_;
  const Replies replies_;
  HttpListener listener_;
};

}  // namespace psd

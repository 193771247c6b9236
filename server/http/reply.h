#pragma once

#include <memory>
#include <string>

#include <kj/compat/http.h>
#include <kj/timer.h>

#include "server/http/http_metrics.h"

namespace psd {

/// The headers that this side reads and writes beside those that kj knows. Immutable once the table is built.
struct HttpHeaderNames {
  explicit HttpHeaderNames(kj::HttpHeaderTable::Builder& builder)
      : table(builder.getFutureTable()),
        cacheControl(builder.add("Cache-Control")),
        contentSecurityPolicy(builder.add("Content-Security-Policy")),
        contentTypeOptions(builder.add("X-Content-Type-Options")),
        referrerPolicy(builder.add("Referrer-Policy")),
        allow(builder.add("Allow")),
        authorization(builder.add("Authorization")),
        authenticate(builder.add("WWW-Authenticate")) {}

  const kj::HttpHeaderTable& table;
  const kj::HttpHeaderId cacheControl, contentSecurityPolicy, contentTypeOptions, referrerPolicy, allow,
      authorization, authenticate;
};

/// Sends answers, each with the headers that every answer has, and with a bound on how long its reader may
/// take. Belongs to one event loop.
class Replies {
 public:
  /// All three outlive it.
  Replies(const HttpHeaderNames& names, kj::Timer& timer, HttpMetrics& metrics, kj::Duration timeout)
      : names_(names), timer_(timer), metrics_(metrics), timeout_(timeout) {}

  struct Answer {
    kj::uint code = 200;
    kj::StringPtr reason = "OK";
    std::string type = "text/plain; charset=utf-8";
    std::shared_ptr<const std::string> content;
    kj::StringPtr allow = nullptr;  ///< methods that there are, with 405
  };
  kj::Promise<void> send(kj::HttpService::Response& response, Answer answer) const;
  /// Begins an answer that has no known end.
  kj::Own<kj::AsyncOutputStream> begin(kj::HttpService::Response& response, kj::StringPtr type) const;
  /// Writes a piece of it. Fails once the reader has taken longer than allowed.
  kj::Promise<void> write(kj::AsyncOutputStream& stream, std::shared_ptr<const std::string> text) const;
  /// Resolves when the answer to a guessed token may go: guessing takes long, on so many connections as there
  /// may be.
  kj::Promise<void> late() const { return timer_.afterDelay(500 * kj::MILLISECONDS); }
  /// Bounds what the peer is waited for.
  template <class T>
  kj::Promise<T> inTime(kj::Promise<T> waiting) const {
    return timer_.timeoutAfter(timeout_, kj::mv(waiting)).catch_([this](kj::Exception&& e) -> kj::Promise<T> {
      if (e.getType() == kj::Exception::Type::OVERLOADED) metrics_.timeouts.add();
      return kj::mv(e);
    });
  }

 private:
  kj::HttpHeaders headers(kj::StringPtr type) const;

  const HttpHeaderNames& names_;
  kj::Timer& timer_;
  HttpMetrics& metrics_;
  const kj::Duration timeout_;
};

}  // namespace psd

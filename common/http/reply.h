#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <kj/compat/http.h>
#include <kj/timer.h>

namespace psd {

/// The headers that this program uses beside those that kj knows. Immutable once the table is built.
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

/// Sends answers, each with the headers common to all answers, and with a limit on how long the reader may
/// take. Belongs to one event loop.
class Replies {
 public:
  /// `names` and `timer` outlive it. `timedOut` is called for each peer that exceeded `timeout`.
  Replies(const HttpHeaderNames& names, kj::Timer& timer, kj::Duration timeout,
          std::function<void()> timedOut)
      : names_(names), timer_(timer), timeout_(timeout), timedOut_(std::move(timedOut)) {}

  struct Answer {
    kj::uint code = 200;
    kj::StringPtr reason = "OK";
    std::string type = "text/plain; charset=utf-8";
    std::shared_ptr<const std::string> content;
    kj::StringPtr allow = nullptr;  ///< allowed methods, with 405
  };
  kj::Promise<void> send(kj::HttpService::Response& response, Answer answer) const;
  /// Sends one line of text.
  kj::Promise<void> text(kj::HttpService::Response& response, kj::uint code, kj::StringPtr reason,
                         std::string line) const;
  /// Starts an answer of unknown length.
  kj::Own<kj::AsyncOutputStream> begin(kj::HttpService::Response& response, kj::StringPtr type) const;
  /// Writes a piece of such an answer. Fails once the reader exceeded the timeout.
  kj::Promise<void> write(kj::AsyncOutputStream& stream, std::shared_ptr<const std::string> text) const;
  /// Delay before the answer to an invalid token: it slows down guessing on the limited number of
  /// connections.
  kj::Promise<void> late() const { return timer_.afterDelay(500 * kj::MILLISECONDS); }
  /// Applies the timeout to an operation that waits for the peer.
  template <class T>
  kj::Promise<T> inTime(kj::Promise<T> waiting) const {
    return timer_.timeoutAfter(timeout_, kj::mv(waiting)).catch_([this](kj::Exception&& e) -> kj::Promise<T> {
      if (e.getType() == kj::Exception::Type::OVERLOADED) timedOut_();
      return kj::mv(e);
    });
  }

 private:
  kj::HttpHeaders headers(kj::StringPtr type) const;

  const HttpHeaderNames& names_;
  kj::Timer& timer_;
  const kj::Duration timeout_;
  const std::function<void()> timedOut_;
};

}  // namespace psd

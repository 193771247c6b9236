#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <kj/compat/http.h>
#include <kj/timer.h>

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
  /// `names` and `timer` outlive it. `timedOut` is called for each peer that took longer than `timeout`.
  Replies(const HttpHeaderNames& names, kj::Timer& timer, kj::Duration timeout,
          std::function<void()> timedOut)
      : names_(names), timer_(timer), timeout_(timeout), timedOut_(std::move(timedOut)) {}

  struct Answer {
    kj::uint code = 200;
    kj::StringPtr reason = "OK";
    std::string type = "text/plain; charset=utf-8";
    std::shared_ptr<const std::string> content;
    kj::StringPtr allow = nullptr;  ///< methods that there are, with 405
  };
  kj::Promise<void> send(kj::HttpService::Response& response, Answer answer) const;
  /// A line.
  kj::Promise<void> text(kj::HttpService::Response& response, kj::uint code, kj::StringPtr reason,
                         std::string line) const;
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

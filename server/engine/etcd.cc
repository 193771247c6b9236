#include "server/engine/etcd.h"

#include <algorithm>
#include <utility>

#include <kj/refcount.h>
#include <spdlog/spdlog.h>

#include "common/os/private_file.h"
#include "common/text/text.h"
#include "common/tls/tls_context.h"

namespace psd {
namespace {

constexpr uint64_t kRetryMs = 200;               // retry delay after an error
constexpr uint64_t kPasswordFileMax = 4u << 10;  // bytes

/// Combines the errors of all members: returns first one that waiting does not fix.
Error combineErrors(const std::vector<Error>& errors) {
  for (const Error& error : errors) {
    if (!isRetryable(error.code)) return {error.code, "etcd: " + error.message};
  }
  const auto text = [](const Error& error) { return error.message; };
  return {ErrorCode::unavailable, "etcd: no answer: " + joined(errors, "; ", text)};
}

Result<std::string> readPassword(const std::string& path) {
  PSD_ASSIGN_OR_RETURN(std::string text,
                       readPrivateText(path, kPasswordFileMax, "a file with a password", true));
  text.resize(std::min(text.find_first_of("\r\n"), text.size()));
  if (text.empty())
    return Error{ErrorCode::invalidArgument, quotedPath(path) + ": its first line is empty: no password"};
  if (!isUtf8(text))
    return Error{ErrorCode::invalidArgument, quotedPath(path) + ": the password is not UTF-8"};
  return text;
}

}  // namespace

/// One request sent to all members.
template <class T>
struct Etcd::Race : public kj::Refcounted {
  explicit Race(kj::Own<kj::PromiseFulfiller<Result<T>>> first) : fulfiller(kj::mv(first)) {}

  void arrived(Result<T>&& answer) {
    waitFor--;
    if (answer.ok()) return fulfiller->fulfill(kj::mv(answer));
    errors.push_back(answer.error());
    if (waitFor == 0) fulfiller->fulfill(combineErrors(errors));
  }

  kj::Own<kj::PromiseFulfiller<Result<T>>> fulfiller;  // accepts only the first answer
  size_t waitFor = 0;
  std::vector<Error> errors;
};

Result<std::unique_ptr<Etcd>> Etcd::open(kj::Network& network, kj::Timer& timer, const EtcdOptions& options) {
  if (options.members.empty()) return Error{ErrorCode::invalidArgument, "etcd: no members are configured"};
  std::string password;
  if (!options.user.empty()) {
    auto read = readPassword(options.passwordFile);
    if (!read.ok()) return Error{read.error().code, "engine.password_file: " + read.message()};
    password = *std::move(read);
  }
  const bool anyTls =
      std::ranges::any_of(options.members, [](const EtcdMember& member) { return member.tls; });
  const Status context = anyTls ? TlsContext::forClient(options.tls).status() : Status();
  if (!context.ok()) return Error{context.error().code, "engine.tls: " + context.message()};
  return std::make_unique<Etcd>(network, timer, options, password);
}

Etcd::Etcd(kj::Network& network, kj::Timer& timer, EtcdOptions options, const std::string& password)
    : timer_(timer), options_(std::move(options)), tasks_(*this) {
  for (const EtcdMember& member : options_.members) {
    endpoints_.push_back(std::make_unique<EtcdEndpoint>(network, timer, options_, member, password));
  }
}

kj::Promise<void> Etcd::after(uint64_t milliseconds) {
  return timer_.afterDelay(milliseconds * kj::MILLISECONDS);
}

template <class T>
kj::Promise<Result<T>> Etcd::firstOf(const Ask<T>& ask) {
  auto pair = kj::newPromiseAndFulfiller<Result<T>>();
  auto race = kj::refcounted<Race<T>>(kj::mv(pair.fulfiller));
  race->waitFor = endpoints_.size();
  // Slower requests are not cancelled: their connections serve the next call.
  for (const auto& endpoint : endpoints_) {
    tasks_.add(ask(*endpoint).then(
        [race = kj::addRef(*race)](Result<T> answer) mutable { race->arrived(kj::mv(answer)); }));
  }
  return pair.promise.then([this](Result<T> answer) {
    trouble_ = answer.ok() ? "" : answer.message();
    return answer;
  });
}

kj::Promise<Result<etcd::Range>> Etcd::range(std::string key) {
  using Answer = Result<etcd::Range>;
  return firstOf<etcd::Range>([key](EtcdEndpoint& endpoint) {
    return endpoint.post("/v3/kv/range", etcd::rangeRequest(key))
        .then([key, &endpoint](Result<std::string> body) -> Answer {
          if (!body.ok()) return body.error();
          Answer range = etcd::readRange(*body, key);
          return range.ok() ? kj::mv(range) : Answer(endpoint.named(range.error()));
        });
  });
}

kj::Promise<Result<Stored>> Etcd::read(std::string key) {
  return range(std::move(key)).then([](Result<etcd::Range> range) -> Result<Stored> {
    if (!range.ok()) return range.error();
    return std::move(range->stored);
  });
}

kj::Promise<Result<Swapped>> Etcd::swap(std::string key, uint64_t expectedRevision, std::string text) {
  using Answer = Result<Swapped>;
  if (text.size() > kEngineTextBytesMax) {
    return Answer(Error{ErrorCode::invalidArgument, key + ": a text of " + std::to_string(text.size()) +
                                                        " bytes exceeds the limit of " +
                                                        std::to_string(kEngineTextBytesMax)});
  }
  const std::string request = etcd::swapRequest(key, expectedRevision, text);
  return firstOf<Swapped>([&](EtcdEndpoint& endpoint) {
    return endpoint.post("/v3/kv/txn", request)
        .then([key, text, &endpoint](Result<std::string> body) -> Answer {
          if (!body.ok()) return body.error();
          Answer swapped = etcd::readSwap(*body, key, text);
          return swapped.ok() ? kj::mv(swapped) : Answer(endpoint.named(swapped.error()));
        });
  });
}

kj::Promise<Result<Stored>> Etcd::changed(std::string key, uint64_t knownRevision) {
  using Answer = Result<Stored>;
  return range(key).then([this, key, knownRevision](Result<etcd::Range> range) -> kj::Promise<Answer> {
    if (!range.ok()) {
      if (!isRetryable(range.error().code)) return Answer(range.error());
      return after(kRetryMs).then([this, key, knownRevision] { return changed(key, knownRevision); });
    }
    if (range->stored.revision != knownRevision) return Answer(std::move(range->stored));
    // A partitioned member sees no changes, so watch all members, and also read the key periodically.
    auto first = after(options_.pollMs).then([this, key, knownRevision] { return poll(key, knownRevision); });
    for (const auto& endpoint : endpoints_) {
      first = first.exclusiveJoin(follow(*endpoint, key, range->asOf + 1, knownRevision, false));
    }
    return kj::mv(first);
  });
}

kj::Promise<Result<Stored>> Etcd::poll(std::string key, uint64_t knownRevision) {
  return read(key).then([this, key, knownRevision](Result<Stored> stored) -> kj::Promise<Result<Stored>> {
    const bool is = stored.ok() ? stored->revision != knownRevision : !isRetryable(stored.error().code);
    if (is) return kj::mv(stored);
    return after(stored.ok() ? options_.pollMs : kRetryMs).then([this, key, knownRevision] {
      return poll(key, knownRevision);
    });
  });
}

kj::Promise<Result<Stored>> Etcd::follow(EtcdEndpoint& endpoint, std::string key, uint64_t fromRevision,
                                         uint64_t knownRevision, bool keyWasRead) {
  return endpoint.watch(key, fromRevision)
      .then([this, &endpoint, key, fromRevision, knownRevision,
             keyWasRead](Result<etcd::WatchLine> line) -> kj::Promise<Result<Stored>> {
        if (line.ok() && line->changed && line->changed->revision > knownRevision) {
          return Result<Stored>(*std::move(line->changed));
        }
        // The concurrent reads report the errors that waiting does not fix.
        const uint64_t from = line.ok() ? std::max(fromRevision, line->compacted) : fromRevision;
        if (line.ok() && line->deleted) return poll(key, knownRevision);
        if (!line.ok() && !keyWasRead) return reopenWatch(endpoint, key, from, knownRevision);
        return after(kRetryMs).then([this, &endpoint, key, from, knownRevision] {
          return follow(endpoint, key, from, knownRevision, true);
        });
      });
}

kj::Promise<Result<Stored>> Etcd::reopenWatch(EtcdEndpoint& endpoint, std::string key, uint64_t fromRevision,
                                              uint64_t knownRevision) {
  return after(kRetryMs)
      .then([this, key] { return read(key); })
      .then([this, &endpoint, key, fromRevision,
             knownRevision](Result<Stored> stored) -> kj::Promise<Result<Stored>> {
        if (stored.ok() && stored->revision != knownRevision) return kj::mv(stored);
        if (!stored.ok()) return reopenWatch(endpoint, key, fromRevision, knownRevision);
        return follow(endpoint, key, fromRevision, knownRevision, true);
      });
}

void Etcd::taskFailed(kj::Exception&& exception) {
  spdlog::debug("etcd: a call ended: {}", exception.getDescription().cStr());
}

}  // namespace psd

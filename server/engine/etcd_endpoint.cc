#include "server/engine/etcd_endpoint.h"

#include <utility>

#include <kj/debug.h>
#include <kj/refcount.h>

#include "common/text/text.h"
#include "server/engine/etcd_address.h"

namespace psd {
namespace {

constexpr uint64_t kAnswerBytesMax = 2u << 20;  // of a response, and of a line of a watch
constexpr auto kTokenAge = 60 * kj::SECONDS;    // etcd's tokens live for 300 s by default

using Line = etcd::WatchLine;

/// The reason given by a system call or HTTP, without the name of the call.
std::string reasonOf(const kj::Exception& exception) {
  std::string text = exception.getDescription().cStr();
  const size_t call = text.find("): ");
  if (call != std::string::npos && exception.getType() != kj::Exception::Type::FAILED)
    text.erase(0, call + 3);
  return oneLine(text, 300);
}

}  // namespace

/// The connections to a member. A replaced client is destroyed once unused.
struct EtcdEndpoint::Client : public kj::Refcounted {
  Client(kj::Network& network, kj::Timer& timer, const kj::HttpHeaderTable& table, const EtcdMember& member,
         const TlsFiles& tls)
      : address(network, member, tls), http(kj::newHttpClient(timer, table, address, settings())) {}

  static kj::HttpClientSettings settings() {
    kj::HttpClientSettings settings;
    settings.idleTimeout = 30 * kj::SECONDS;
    return settings;
  }

  EtcdAddress address;
  kj::Own<kj::HttpClient> http;
};

/// A streamed response.
struct EtcdEndpoint::Stream {
  kj::Own<Client> client;
  std::string key, request;
  std::string lines;  // not parsed yet
  char buffer[4096];
  kj::Own<kj::AsyncInputStream> body;
};

EtcdEndpoint::EtcdEndpoint(kj::Network& network, kj::Timer& timer, const EtcdOptions& options,
                           EtcdMember member, std::string password)
    : network_(network),
      timer_(timer),
      options_(options),
      member_(std::move(member)),
      password_(std::move(password)),
      authorization_(names_.add("Authorization")),
      table_(names_.build()),
      tokenSince_(timer.now()) {
  renewClient();
}

EtcdEndpoint::~EtcdEndpoint() noexcept(false) = default;

void EtcdEndpoint::renewClient() {
  client_ = kj::refcounted<Client>(network_, timer_, *table_, member_, options_.tls);
}

Error EtcdEndpoint::named(const Error& error) const {
  return {error.code, member_.toString() + ": " + error.message};
}

Error EtcdEndpoint::errorOf(const kj::Exception& exception) const {
  return named({ErrorCode::unavailable, reasonOf(exception)});
}

template <class T>
kj::Promise<Result<T>> EtcdEndpoint::within(uint64_t milliseconds, kj::Promise<Result<T>> promise) {
  auto late = timer_.afterDelay(milliseconds * kj::MILLISECONDS).then([this, milliseconds]() -> Result<T> {
    const std::string time = std::to_string(milliseconds) + " ms";
    return named({ErrorCode::unavailable, "no answer within " + time});
  });
  return promise.catch_([this](kj::Exception&& exception) -> Result<T> { return errorOf(exception); })
      .exclusiveJoin(kj::mv(late));
}

EtcdEndpoint::Open EtcdEndpoint::open(Client& client, const std::string& path, const std::string& body,
                                      const std::string& token) {
  kj::HttpHeaders headers(*table_);
  headers.set(kj::HttpHeaderId::HOST, kj::heapString(member_.authority().c_str()));
  headers.set(kj::HttpHeaderId::CONTENT_TYPE, "application/json");
  if (!token.empty()) headers.set(authorization_, kj::heapString(token.c_str()));
  auto request = client.http->request(kj::HttpMethod::POST, path.c_str(), headers, uint64_t{body.size()});
  return request.body->write(body.data(), body.size())
      .attach(kj::mv(request.body))
      .then([response = kj::mv(request.response)]() mutable { return kj::mv(response); });
}

kj::Promise<EtcdEndpoint::Answer> EtcdEndpoint::send(std::string path, std::string body, std::string token) {
  struct Call {
    kj::Own<Client> client;
    std::string path, body, token;
  };
  auto call = kj::heap<Call>(Call{kj::addRef(*client_), std::move(path), std::move(body), std::move(token)});
  return open(*call->client, call->path, call->body, call->token)
      .then([this](kj::HttpClient::Response&& response) {
        const unsigned status = response.statusCode;
        // etcd's error responses have a trailer, after which the connection is not reusable.
        if (status != 200) renewClient();
        auto& body = *response.body;
        return body.readAllText(kAnswerBytesMax)
            .attach(kj::mv(response.body))
            .then([status](kj::String text) {
              return Answer{status, std::string(text.begin(), text.size())};
            });
      })
      .attach(kj::mv(call));
}

kj::Promise<Result<std::string>> EtcdEndpoint::token() {
  if (options_.user.empty() || authIsOff_) return Result<std::string>(std::string());
  if (token_.empty()) {
    login();
    return loggingIn_.addBranch();
  }
  // Renew the token early: a login takes etcd about 100 ms, for which no call should wait.
  if (timer_.now() - tokenSince_ > kTokenAge) login();
  return Result<std::string>(token_);
}

void EtcdEndpoint::login() {
  using Token = Result<std::string>;
  if (loggingInNow_) return;
  loggingInNow_ = true;
  auto asked = kj::evalNow([&] {
                 return send("/v3/auth/authenticate", etcd::loginRequest(options_.user, password_), "");
               }).then([this](Answer answer) -> Token {
    if (answer.status == 200) {
      Token token = etcd::readToken(answer.body);
      return token.ok() ? kj::mv(token) : Token(named(token.error()));
    }
    const etcd::Refusal refusal = etcd::readRefusal(answer.status, answer.body);
    if (!refusal.authIsOff) return named(refusal.error);
    authIsOff_ = true;
    return std::string();
  });
  // Continues even if no caller waits any longer: the next call uses the token.
  loggingIn_ = within<std::string>(options_.loginMs, kj::mv(asked))
                   .then([this](Token token) {
                     loggingInNow_ = false;
                     tokenSince_ = timer_.now();
                     if (token.ok()) token_ = *token;
                     return token;
                   })
                   .fork();
}

kj::Promise<Result<EtcdEndpoint::Answer>> EtcdEndpoint::sendAsUser(std::string path, std::string body,
                                                                   bool again) {
  using Sent = Result<Answer>;
  return token().then([this, path = std::move(path), body = std::move(body),
                       again](Result<std::string> token) mutable -> kj::Promise<Sent> {
    if (!token.ok()) return Sent(token.error());
    auto sent = send(path, body, *token);
    return sent.then([this, path = std::move(path), body = std::move(body),
                      again](Answer answer) mutable -> kj::Promise<Sent> {
      const bool ask = answer.status != 200 && !again && !options_.user.empty();
      if (!ask || !etcd::readRefusal(answer.status, answer.body).needsLogin) return Sent(std::move(answer));
      token_.clear();
      authIsOff_ = false;
      return sendAsUser(std::move(path), std::move(body), true);
    });
  });
}

kj::Promise<Result<std::string>> EtcdEndpoint::post(std::string path, std::string body) {
  using Body = Result<std::string>;
  auto asked = kj::evalNow([&] {
                 return sendAsUser(std::move(path), std::move(body), false);
               }).then([this](Result<Answer> answer) -> kj::Promise<Body> {
    if (!answer.ok()) return Body(answer.error());
    if (answer->status == 200) return Body(std::move(answer->body));
    const etcd::Refusal refusal = etcd::readRefusal(answer->status, answer->body);
    if (!refusal.noSuchPath) return Body(named(refusal.error));
    return diagnoseMissingPath(refusal.error).then([](Error error) { return Body(error); });
  });
  return within<std::string>(options_.answerMs, kj::mv(asked));
}

kj::Promise<Error> EtcdEndpoint::diagnoseMissingPath(Error refused) {
  return send("/v3beta/kv/range", etcd::rangeRequest("psd"), "").then([this, refused](Answer answer) {
    const bool old = answer.status != 404;
    return named(
        {ErrorCode::protocolMismatch,
         old ? "this etcd is older than 3.4 (it answers at /v3beta/ only): psd needs etcd 3.4 or later"
             : "no etcd answers at /v3/: " + refused.message});
  });
}

kj::Promise<Result<kj::Own<EtcdEndpoint::Stream>>> EtcdEndpoint::openStream(std::string key,
                                                                            uint64_t fromRevision,
                                                                            std::string token) {
  using Opened = Result<kj::Own<Stream>>;
  auto stream = kj::heap<Stream>();
  stream->client = kj::addRef(*client_);
  stream->request = etcd::watchRequest(key, fromRevision);
  stream->key = std::move(key);
  auto opened = open(*stream->client, "/v3/watch", stream->request, token);
  return opened.then([this, stream = kj::mv(stream)](kj::HttpClient::Response&& response) mutable -> Opened {
    if (response.statusCode != 200) {
      renewClient();
      return named({ErrorCode::unavailable, "the watch: HTTP " + std::to_string(response.statusCode)});
    }
    stream->body = kj::mv(response.body);
    return kj::mv(stream);
  });
}

kj::Promise<Result<etcd::WatchLine>> EtcdEndpoint::watch(std::string key, uint64_t fromRevision) {
  using Opened = Result<kj::Own<Stream>>;
  auto opened = kj::evalNow([&] { return token(); })
                    .then([this, key = std::move(key),
                           fromRevision](Result<std::string> token) mutable -> kj::Promise<Opened> {
                      if (!token.ok()) return Opened(token.error());
                      return openStream(std::move(key), fromRevision, *std::move(token));
                    });
  return within<kj::Own<Stream>>(options_.answerMs, kj::mv(opened))
      .then([this](Opened stream) -> kj::Promise<Result<Line>> {
        if (!stream.ok()) return Result<Line>(stream.error());
        return readLines(*kj::mv(stream));
      })
      .catch_([this](kj::Exception&& exception) -> Result<Line> { return errorOf(exception); });
}

std::optional<Result<etcd::WatchLine>> EtcdEndpoint::takeLines(Stream& stream) {
  size_t begin = 0;
  for (size_t end; (end = stream.lines.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const std::string_view line = std::string_view(stream.lines).substr(begin, end - begin);
    if (line.empty()) continue;
    Result<Line> read = etcd::readWatch(line, stream.key);
    if (!read.ok()) {
      if (etcd::isLoginRequired(read.message())) token_.clear();
      return Result<Line>(named(read.error()));
    }
    if (read->changed || read->compacted != 0) return *std::move(read);
  }
  stream.lines.erase(0, begin);
  if (stream.lines.size() > kAnswerBytesMax) {
    return Result<Line>(named({ErrorCode::unavailable, "a line of the watch is too long"}));
  }
  return std::nullopt;
}

kj::Promise<Result<etcd::WatchLine>> EtcdEndpoint::readLines(kj::Own<Stream> stream) {
  auto& open = *stream;
  return open.body->tryRead(open.buffer, 1, sizeof open.buffer)
      .then([this, stream = kj::mv(stream)](size_t bytes) mutable -> kj::Promise<Result<Line>> {
        if (bytes == 0) return Result<Line>(named({ErrorCode::unavailable, "the watch ended"}));
        stream->lines.append(stream->buffer, bytes);
        if (auto answer = takeLines(*stream)) return *std::move(answer);
        return readLines(kj::mv(stream));
      });
}

}  // namespace psd

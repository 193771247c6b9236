#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <kj/async-io.h>
#include <kj/compat/http.h>
#include <kj/timer.h>

#include "server/engine/etcd_json.h"
#include "server/engine/etcd_options.h"

namespace psd {

/// HTTP client of one etcd member: its connections and its auth token. Errors name the member. Owned by one
/// event loop; its promises do not outlive it.
class EtcdEndpoint {
 public:
  /// `options` outlives the object. `password`: of the options' user, if there is one.
  EtcdEndpoint(kj::Network& network, kj::Timer& timer, const EtcdOptions& options, EtcdMember member,
               std::string password);
  ~EtcdEndpoint() noexcept(false);

  /// The body of a 200 response to a POST, within `answerMs`. ErrorCode::unavailable also on timeout: the
  /// call may have taken effect.
  kj::Promise<Result<std::string>> post(std::string path, std::string body);
  /// The first line of a watch that reports a change of the key since that etcd revision, or that the
  /// revision was compacted. An Error if the watch ends before that.
  kj::Promise<Result<etcd::WatchLine>> watch(std::string key, uint64_t fromRevision);
  Error named(const Error& error) const;

 private:
  struct Client;
  /// A response of any status.
  struct Answer {
    unsigned status = 0;
    std::string body;
  };
  struct Stream;
  using Open = kj::Promise<kj::HttpClient::Response>;

  Open open(Client& client, const std::string& path, const std::string& body, const std::string& token);
  kj::Promise<Answer> send(std::string path, std::string body, std::string token);
  /// Sends with the token, and retries once with a new one if etcd asks for it.
  kj::Promise<Result<Answer>> sendAsUser(std::string path, std::string body, bool again);
  kj::Promise<Result<std::string>> token();
  /// Starts a login, unless one is in progress: `loggingIn_`.
  void login();
  kj::Promise<Result<kj::Own<Stream>>> openStream(std::string key, uint64_t fromRevision, std::string token);
  kj::Promise<Result<etcd::WatchLine>> readLines(kj::Own<Stream> stream);
  /// Parses the lines received so far: nullopt if none is relevant.
  std::optional<Result<etcd::WatchLine>> takeLines(Stream& stream);
  /// Tells a version without /v3/ from a server that is not etcd.
  kj::Promise<Error> diagnoseMissingPath(Error refused);
  void renewClient();
  Error errorOf(const kj::Exception& exception) const;
  template <class T>
  kj::Promise<Result<T>> within(uint64_t milliseconds, kj::Promise<Result<T>> promise);

  kj::Network& network_;
  kj::Timer& timer_;
  const EtcdOptions& options_;
  const EtcdMember member_;
  const std::string password_;
  kj::HttpHeaderTable::Builder names_;
  const kj::HttpHeaderId authorization_;
  const kj::Own<kj::HttpHeaderTable> table_;
  kj::Own<Client> client_;
  std::string token_;  // empty: none yet, or not needed
  bool authIsOff_ = false;
  kj::TimePoint tokenSince_;
  bool loggingInNow_ = false;
  kj::ForkedPromise<Result<std::string>> loggingIn_ = nullptr;  // the latest one
};

}  // namespace psd

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

/// One member of an etcd, asked over HTTP: its connections, and the token that it gave. Errors name it. Owned
/// by one event loop; its promises do not outlive it.
class EtcdEndpoint {
 public:
  /// `options` outlives it. `password`: for the user of the options, if they have one.
  EtcdEndpoint(kj::Network& network, kj::Timer& timer, const EtcdOptions& options, EtcdMember member,
               std::string password);
  ~EtcdEndpoint() noexcept(false);

  /// The body of the answer to a POST, which is 200, after `answerMs` at most. unavailable also where that
  /// time is over: the call may have happened.
  kj::Promise<Result<std::string>> post(std::string path, std::string body);
  /// The first line that tells of a change of the key from that revision of etcd on, or that etcd no longer
  /// has what was then. An Error where the watch ends before that.
  kj::Promise<Result<etcd::WatchLine>> watch(std::string key, uint64_t fromRevision);
  Error named(const Error& error) const;

 private:
  struct Client;
  /// The answer with its status, whatever that is.
  struct Answer {
    unsigned status = 0;
    std::string body;
  };
  struct Stream;
  using Open = kj::Promise<kj::HttpClient::Response>;

  Open open(Client& client, const std::string& path, const std::string& body, const std::string& token);
  kj::Promise<Answer> send(std::string path, std::string body, std::string token);
  /// With the token, and once more with a new one where etcd wants that.
  kj::Promise<Result<Answer>> sendAsUser(std::string path, std::string body, bool again);
  kj::Promise<Result<std::string>> token();
  /// Begins one, unless one is under way: `loggingIn_`.
  void login();
  kj::Promise<Result<kj::Own<Stream>>> openStream(std::string key, uint64_t fromRevision, std::string token);
  kj::Promise<Result<etcd::WatchLine>> readLines(kj::Own<Stream> stream);
  /// Of the lines that have come: nothing where none of them tells anything.
  std::optional<Result<etcd::WatchLine>> takeLines(Stream& stream);
  /// What a version without /v3/ is told apart by.
  kj::Promise<Error> explainMissingPath(Error refused);
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
  std::string token_;  // empty: none yet, or none needed
  bool authIsOff_ = false;
  kj::TimePoint tokenSince_;
  bool loggingInNow_ = false;
  kj::ForkedPromise<Result<std::string>> loggingIn_ = nullptr;  // the last one
};

}  // namespace psd

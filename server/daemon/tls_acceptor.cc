#include "server/daemon/tls_acceptor.h"

#include <chrono>
#include <ctime>
#include <utility>

#include <spdlog/spdlog.h>

#include "common/log/log_line.h"
#include "common/os/env.h"
#include "common/os/text_file.h"
#include "common/text/text.h"
#include "common/tls/tls_stream.h"

namespace psd {
namespace {

constexpr uint64_t kFileBytesMax = 16ull << 20;
constexpr std::chrono::hours kWarnedBefore{7 * 24};

Result<TlsAcceptor::Files> readFiles(const TlsConfig& config) {
  TlsAcceptor::Files files;
  // First, since it reports unsuitable files.
  PSD_ASSIGN_OR_RETURN(files.context, TlsContext::forServer({config.certificate, config.key, config.clientCa,
                                                             config.requireClient}));
  PSD_ASSIGN_OR_RETURN(const Hasher hasher, Hasher::make());
  const std::unique_ptr<Env> env = makePosixEnv();
  const std::pair<const char*, const std::string&> named[] = {
      {"tls.certificate", config.certificate}, {"tls.key", config.key}, {"tls.client_ca", config.clientCa}};
  for (const auto& [key, path] : named) {
    if (path.empty()) continue;
    PSD_ASSIGN_OR_RETURN(const std::string text, readText(*env, path, kFileBytesMax, "a TLS file"));
    PSD_ASSIGN_OR_RETURN(const Sha256 content, hasher.sha256(text));
    files.read[key] = {path, content};
  }
  return files;
}

/// Warns the operator of an expired certificate, or one that expires soon. Clients reject an expired one.
void warnOfEnd(const TlsAcceptor::Files& files) {
  const auto file = files.read.find("tls.certificate");
  const auto ends = files.context ? files.context->certificateEnds() : std::nullopt;
  if (!ends || file == files.read.end()) return;
  const auto left = *ends - std::chrono::system_clock::now();
  if (left > kWarnedBefore) return;
  const std::string date = utcText(std::chrono::system_clock::to_time_t(*ends));
  const bool over = left <= left.zero();
  spdlog::warn("tls.certificate: '{}' {} {}{}: replace it and reload", file->second.path,
               over ? "expired on" : "expires on", date, over ? ", and clients reject it" : "");
}

}  // namespace

Result<TlsAcceptor::Files> TlsAcceptor::read(const std::optional<TlsConfig>& config) {
  if (!config) return Files();
  auto files = readFiles(*config);
  if (!files.ok()) return Error{files.error().code, "tls: " + files.message()};
  return files;
}

std::string TlsAcceptor::adopt(Files files) {
  warnOfEnd(files);
  std::string change = changesTo(files);
  const std::lock_guard lock(mutex_);
  files_ = std::move(files);
  return change;
}

std::string TlsAcceptor::changesTo(const Files& files) const {
  const std::lock_guard lock(mutex_);
  std::string change;
  for (const auto& [key, file] : files.read) {
    // A different path is a change of the configuration, which is reported anyway.
    const auto before = files_.read.find(key);
    if (before == files_.read.end() || before->second.path != file.path) continue;
    if (before->second.content != file.content) change += (change.empty() ? "" : ", ") + key + ": reloaded";
  }
  return change;
}

void TlsAcceptor::warnOfExpiry() const {
  const std::lock_guard lock(mutex_);
  warnOfEnd(files_);
}

std::optional<uint64_t> TlsAcceptor::certificateExpiry() const {
  const auto context = this->context();
  const auto ends = context ? context->certificateEnds() : std::nullopt;
  if (!ends) return std::nullopt;
  return static_cast<uint64_t>(std::chrono::system_clock::to_time_t(*ends));
}

std::shared_ptr<const TlsContext> TlsAcceptor::context() const {
  const std::lock_guard lock(mutex_);
  return files_.context;
}

kj::Promise<kj::Maybe<AcceptedPeer>> TlsAcceptor::meet(EventLoop& loop, AcceptedSocket accepted) const {
  using Answer = kj::Maybe<AcceptedPeer>;
  auto context = this->context();
  const int fd = accepted.fd.release();
  wire::Socket socket = wire::wrapSocket(*loop.io().lowLevelProvider, fd);
  const auto refused = [&loop, peer = accepted.peer](const std::string& why) -> Answer {
    DaemonMetrics& counters = loop.environment().counters;
    counters.handshakesRefused.add();
    counters.connectionsOpen.subtract();
    logLine(spdlog::level::warn, {.event = "handshake_refused", .peer = peer, .limited = true},
            "refused {}: {}", peer, why);
    return nullptr;
  };
  // A reload may have removed `tls`; the address stays.
  if (context == nullptr) return refused("the configuration no longer has `tls`");
  const uint64_t timeoutMs = loop.config().limits.loginTimeoutMs;
  return loop.timer()
      .timeoutAfter(timeoutMs * kj::MILLISECONDS,
                    TlsStream::accept(kj::mv(socket.stream), std::move(context)))
      .then(
          [fd, refused, peer = accepted.peer](Result<kj::Own<TlsStream>> stream) mutable -> Answer {
            if (!stream.ok()) return refused(stream.message());
            auto names = (*stream)->peerNames();
            return AcceptedPeer{
                fd, {*kj::mv(stream), nullptr}, {std::move(peer), {}, std::move(names), false}};
          },
          [refused, timeoutMs](kj::Exception&& exception) {
            if (exception.getType() == kj::Exception::Type::OVERLOADED) {
              return refused("no TLS handshake within limits.login_timeout_ms (" + std::to_string(timeoutMs) +
                             ")");
            }
            return refused("the connection broke in the TLS handshake");
          });
}

}  // namespace psd

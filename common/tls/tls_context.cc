#include "common/tls/tls_context.h"

#include <cerrno>
#include <cstring>
#include <ctime>

#include <sys/stat.h>
#include <unistd.h>

namespace psd {
namespace {

/// Replaces OpenSSL's passphrase prompt at the terminal.
int noPassphrase(char*, int, int, void*) { return 0; }

/// Gives a clearer error than OpenSSL for a missing file. `orPipe`: the file may be a pipe, which is waited
/// for.
Status checkReadable(const std::string& file, bool orPipe) {
  struct stat info {};
  if (access(file.c_str(), R_OK) != 0 || stat(file.c_str(), &info) != 0)
    return {ErrorCode::io, file + ": cannot be read: " + std::strerror(errno)};
  if (S_ISDIR(info.st_mode)) return {ErrorCode::io, file + ": is a folder, not a file"};
  if (S_ISREG(info.st_mode) || (S_ISFIFO(info.st_mode) && orPipe)) return {};
  return {ErrorCode::io, file + ": is a device or a pipe, not a file"};
}

}  // namespace

Result<std::shared_ptr<TlsContext>> TlsContext::make(bool server) {
  PSD_ASSIGN_OR_RETURN(const OpenSsl* const openSsl, OpenSsl::load());
  SSL_CTX* const made =
      openSsl->SSL_CTX_new(server ? openSsl->TLS_server_method() : openSsl->TLS_client_method());
  if (made == nullptr) return Error{ErrorCode::internal, "TLS: " + openSsl->takeReason()};
  const std::shared_ptr<TlsContext> context(new TlsContext(*openSsl, made, server));
  openSsl->SSL_CTX_ctrl(made, SSL_CTRL_SET_MIN_PROTO_VERSION, TLS1_3_VERSION, nullptr);
  openSsl->SSL_CTX_ctrl(made, SSL_CTRL_MODE,
                        SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER, nullptr);
  // Every connection authenticates; no TLS session is resumed.
  openSsl->SSL_CTX_ctrl(made, SSL_CTRL_SET_SESS_CACHE_MODE, SSL_SESS_CACHE_OFF, nullptr);
  openSsl->SSL_CTX_set_num_tickets(made, 0);
  openSsl->SSL_CTX_set_default_passwd_cb(made, noPassphrase);
  return context;
}

Error TlsContext::failed(const std::string& file, const std::string& what) const {
  return {ErrorCode::invalidArgument, file + ": " + what + ", in PEM format: " + openSsl_.takeReason()};
}

Status TlsContext::use(const std::string& certificate, const std::string& key) const {
  PSD_RETURN_IF_ERROR(checkReadable(certificate, !server_));
  PSD_RETURN_IF_ERROR(checkReadable(key, !server_));
  if (openSsl_.SSL_CTX_use_certificate_chain_file(context_, certificate.c_str()) != 1) {
    return failed(certificate, "holds no certificate");
  }
  // OpenSSL would accept a key of another type than the certificate's, and never use it.
  if (openSsl_.SSL_CTX_use_PrivateKey_file(context_, key.c_str(), SSL_FILETYPE_PEM) != 1 ||
      openSsl_.SSL_CTX_check_private_key(context_) != 1) {
    return failed(key, "holds no private key without a passphrase that matches " + certificate);
  }
  return {};
}

Status TlsContext::trust(const std::string& ca) const {
  PSD_RETURN_IF_ERROR(checkReadable(ca, !server_));
  if (openSsl_.SSL_CTX_load_verify_locations(context_, ca.c_str(), nullptr) == 1) return {};
  return failed(ca, "holds no certificates of authorities");
}

Result<std::shared_ptr<const TlsContext>> TlsContext::forServer(const TlsServerFiles& files) {
  PSD_ASSIGN_OR_RETURN(const std::shared_ptr<TlsContext> context, make(true));
  PSD_RETURN_IF_ERROR(context->use(files.certificate, files.key));
  if (!files.clientCa.empty()) {
    PSD_RETURN_IF_ERROR(context->trust(files.clientCa));
    // Sent to clients, which may use it to choose a certificate.
    context->openSsl_.SSL_CTX_set_client_CA_list(
        context->context_, context->openSsl_.SSL_load_client_CA_file(files.clientCa.c_str()));
    context->openSsl_.SSL_CTX_set_verify(
        context->context_, SSL_VERIFY_PEER | (files.requireClient ? SSL_VERIFY_FAIL_IF_NO_PEER_CERT : 0),
        nullptr);
  }
  return std::shared_ptr<const TlsContext>(context);
}

Result<std::shared_ptr<const TlsContext>> TlsContext::forClient(const TlsFiles& files) {
  PSD_ASSIGN_OR_RETURN(const std::shared_ptr<TlsContext> context, make(false));
  if (!files.certificate.empty()) PSD_RETURN_IF_ERROR(context->use(files.certificate, files.key));
  if (files.ca.empty()) {
    context->openSsl_.SSL_CTX_set_default_verify_paths(context->context_);
  } else {
    PSD_RETURN_IF_ERROR(context->trust(files.ca));
  }
  context->openSsl_.SSL_CTX_set_verify(context->context_, SSL_VERIFY_PEER, nullptr);
  return std::shared_ptr<const TlsContext>(context);
}

std::optional<std::chrono::system_clock::time_point> TlsContext::certificateEnds() const {
  const X509* const certificate = openSsl_.SSL_CTX_get0_certificate(context_);
  std::tm ends{};
  if (certificate == nullptr ||
      openSsl_.ASN1_TIME_to_tm(openSsl_.X509_get0_notAfter(certificate), &ends) != 1)
    return std::nullopt;
  return std::chrono::system_clock::from_time_t(timegm(&ends));
}

}  // namespace psd

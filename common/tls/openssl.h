#pragma once

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include "common/status/status.h"

// The OpenSSL functions that TLS uses, by their own names. OpenSSL is loaded on first use, so that programs
// without TLS do not pay for its memory.

#define PSD_LIBSSL_FUNCTIONS(F)         \
  F(SSL_CTX_check_private_key)          \
  F(SSL_CTX_ctrl)                       \
  F(SSL_CTX_free)                       \
  F(SSL_CTX_get0_certificate)           \
  F(SSL_CTX_load_verify_locations)      \
  F(SSL_CTX_new)                        \
  F(SSL_CTX_set_client_CA_list)         \
  F(SSL_CTX_set_default_passwd_cb)      \
  F(SSL_CTX_set_default_verify_paths)   \
  F(SSL_CTX_set_num_tickets)            \
  F(SSL_CTX_set_verify)                 \
  F(SSL_CTX_use_PrivateKey_file)        \
  F(SSL_CTX_use_certificate_chain_file) \
  F(SSL_ctrl)                           \
  F(SSL_do_handshake)                   \
  F(SSL_free)                           \
  F(SSL_get0_param)                     \
  F(SSL_get1_peer_certificate)          \
  F(SSL_get_error)                      \
  F(SSL_get_verify_result)              \
  F(SSL_load_client_CA_file)            \
  F(SSL_new)                            \
  F(SSL_read_ex)                        \
  F(SSL_set_accept_state)               \
  F(SSL_set_bio)                        \
  F(SSL_set_connect_state)              \
  F(SSL_shutdown)                       \
  F(SSL_write_ex)                       \
  F(TLS_client_method)                  \
  F(TLS_server_method)

#define PSD_LIBCRYPTO_FUNCTIONS(F) \
  F(ASN1_STRING_get0_data)         \
  F(ASN1_STRING_length)            \
  F(ASN1_TIME_to_tm)               \
  F(BIO_clear_flags)               \
  F(BIO_get_data)                  \
  F(BIO_meth_new)                  \
  F(BIO_meth_set_ctrl)             \
  F(BIO_meth_set_read_ex)          \
  F(BIO_meth_set_write_ex)         \
  F(BIO_new)                       \
  F(BIO_set_data)                  \
  F(BIO_set_flags)                 \
  F(BIO_set_init)                  \
  F(ERR_clear_error)               \
  F(ERR_peek_last_error)           \
  F(ERR_reason_error_string)       \
  F(GENERAL_NAMES_free)            \
  F(OPENSSL_sk_num)                \
  F(OPENSSL_sk_value)              \
  F(X509_NAME_get_index_by_NID)    \
  F(X509_NAME_get_entry)           \
  F(X509_NAME_ENTRY_get_data)      \
  F(X509_VERIFY_PARAM_set1_host)   \
  F(X509_VERIFY_PARAM_set1_ip_asc) \
  F(X509_free)                     \
  F(X509_get0_notAfter)            \
  F(X509_get_ext_d2i)              \
  F(X509_get_subject_name)         \
  F(X509_verify_cert_error_string)

namespace psd {

/// Loaded once per process, and never unloaded. Immutable; thread-safe.
struct OpenSsl {
#define PSD_FUNCTION(name) decltype(&::name) name = nullptr;
  PSD_LIBSSL_FUNCTIONS(PSD_FUNCTION)
  PSD_LIBCRYPTO_FUNCTIONS(PSD_FUNCTION)
#undef PSD_FUNCTION

  /// ErrorCode::unavailable if the libraries cannot be loaded.
  static Result<const OpenSsl*> load();

  /// Returns and clears OpenSSL's reason for the last failure on this thread.
  std::string takeReason() const;

 private:
  OpenSsl();
  Status status_;
};

}  // namespace psd

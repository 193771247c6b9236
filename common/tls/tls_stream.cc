#include "common/tls/tls_stream.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>
#include <kj/debug.h>

#include "common/os/address.h"
#include "common/tls/refusal.h"

namespace psd {
namespace {

constexpr size_t kBufferMin = 16u << 10, kBufferMax = 256u << 10;
constexpr size_t kRecordMax = 16u << 10;   // of plaintext
constexpr size_t kRecordOverhead = 256;    // upper bound
constexpr size_t kSmallInARow = 32;        // after this many small ones the large buffer is freed
constexpr size_t kUnreadMax = 256u << 10;  // from a refused peer
constexpr size_t kNamesMax = 64, kNameMax = 255;

/// Peers' failures are not errors of this library: report them like a broken socket.
kj::Exception disconnected(const std::string& why) {
  return kj::Exception(kj::Exception::Type::DISCONNECTED, __FILE__, __LINE__, kj::heapString(why.c_str()));
}

std::string textOf(const OpenSsl& openSsl, const ASN1_STRING* text) {
  const auto* const bytes = reinterpret_cast<const char*>(openSsl.ASN1_STRING_get0_data(text));
  return {bytes, static_cast<size_t>(std::max(openSsl.ASN1_STRING_length(text), 0))};
}

}  // namespace

/// I/O callbacks: OpenSSL reads from a stream's `in_` and writes to its `out_`.
struct TlsStream::Bio {
  static int read(BIO* bio, char* into, size_t most, size_t* got) {
    TlsStream& stream = of(bio);
    Buffer& in = stream.in_;
    stream.openSsl_.BIO_clear_flags(bio, BIO_FLAGS_RWS | BIO_FLAGS_SHOULD_RETRY);
    *got = std::min(most, in.size());
    if (*got == 0) {
      stream.openSsl_.BIO_set_flags(bio, BIO_FLAGS_READ | BIO_FLAGS_SHOULD_RETRY);
      return 0;
    }
    std::memcpy(into, in.bytes.begin() + in.begin, *got);
    in.begin += *got;
    return 1;
  }

  static int write(BIO* bio, const char* from, size_t bytes, size_t* taken) {
    TlsStream& stream = of(bio);
    Buffer& out = stream.out_;
    stream.openSsl_.BIO_clear_flags(bio, BIO_FLAGS_RWS | BIO_FLAGS_SHOULD_RETRY);
    if (out.size() + bytes > kBufferMax + kBufferMin) {  // bounds data that is not sent
      stream.openSsl_.BIO_set_flags(bio, BIO_FLAGS_WRITE | BIO_FLAGS_SHOULD_RETRY);
      *taken = 0;
      return 0;
    }
    if (out.end + bytes > out.bytes.size()) {
      const size_t room = out.size() + bytes > kBufferMin ? kBufferMax + kBufferMin : kBufferMin;
      auto larger = kj::heapArray<kj::byte>(room);
      if (out.size() > 0) std::memcpy(larger.begin(), out.bytes.begin() + out.begin, out.size());
      out = {kj::mv(larger), 0, out.size()};
    }
    std::memcpy(out.bytes.begin() + out.end, from, bytes);
    out.end += bytes;
    *taken = bytes;
    return 1;
  }

  static long control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

  static TlsStream& of(BIO* bio) {
    // OpenSSL is loaded once a stream exists.
    return *static_cast<TlsStream*>((*OpenSsl::load())->BIO_get_data(bio));
  }

  /// Created once per process, like OpenSSL's own.
  static const BIO_METHOD* methods(const OpenSsl& openSsl) {
    static BIO_METHOD* const made = [&openSsl] {
      BIO_METHOD* const methods = openSsl.BIO_meth_new(BIO_TYPE_SOURCE_SINK, "psd");
      openSsl.BIO_meth_set_read_ex(methods, read);
      openSsl.BIO_meth_set_write_ex(methods, write);
      openSsl.BIO_meth_set_ctrl(methods, control);
      return methods;
    }();
    return made;
  }
};

TlsStream::TlsStream(kj::Own<kj::AsyncIoStream> below, std::shared_ptr<const TlsContext> context)
    : context_(std::move(context)),
      openSsl_(context_->openSsl()),
      below_(kj::mv(below)),
      ssl_(openSsl_.SSL_new(context_->get())) {
  BIO* const bio = openSsl_.BIO_new(Bio::methods(openSsl_));
  KJ_REQUIRE(ssl_ != nullptr && bio != nullptr, "out of memory for TLS");
  openSsl_.BIO_set_data(bio, this);
  openSsl_.BIO_set_init(bio, 1);
  openSsl_.SSL_set_bio(ssl_, bio, bio);  // which owns it from now on
}

TlsStream::~TlsStream() noexcept(false) { openSsl_.SSL_free(ssl_); }

kj::Promise<Result<kj::Own<TlsStream>>> TlsStream::accept(kj::Own<kj::AsyncIoStream> below,
                                                          std::shared_ptr<const TlsContext> context) {
  auto stream = kj::heap<TlsStream>(kj::mv(below), std::move(context));
  stream->openSsl_.SSL_set_accept_state(stream->ssl_);
  TlsStream& self = *stream;
  return self.handshake(kj::mv(stream));
}

kj::Promise<Result<kj::Own<TlsStream>>> TlsStream::connect(kj::Own<kj::AsyncIoStream> below,
                                                           std::shared_ptr<const TlsContext> context,
                                                           const std::string& host) {
  auto stream = kj::heap<TlsStream>(kj::mv(below), std::move(context));
  TlsStream& self = *stream;
  const OpenSsl& openSsl = self.openSsl_;
  openSsl.SSL_set_connect_state(self.ssl_);
  X509_VERIFY_PARAM* const rules = openSsl.SSL_get0_param(self.ssl_);
  if (isIpAddress(host)) {
    openSsl.X509_VERIFY_PARAM_set1_ip_asc(rules, host.c_str());
  } else {
    openSsl.X509_VERIFY_PARAM_set1_host(rules, host.c_str(), host.size());
    std::string name = host;
    openSsl.SSL_ctrl(self.ssl_, SSL_CTRL_SET_TLSEXT_HOSTNAME, TLSEXT_NAMETYPE_host_name, name.data());
  }
  return self.handshake(kj::mv(stream));
}

kj::Promise<Result<kj::Own<TlsStream>>> TlsStream::handshake(kj::Own<TlsStream> self) {
  using Answer = Result<kj::Own<TlsStream>>;
  openSsl_.ERR_clear_error();
  const int done = openSsl_.SSL_do_handshake(ssl_);
  const int error = done == 1 ? SSL_ERROR_NONE : openSsl_.SSL_get_error(ssl_, done);
  if (error != SSL_ERROR_NONE && error != SSL_ERROR_WANT_READ) return refuse(kj::mv(self));
  return flush().then([this, error, self = kj::mv(self)]() mutable -> kj::Promise<Answer> {
    if (error == SSL_ERROR_NONE) return Answer(kj::mv(self));
    return fill().then([this, self = kj::mv(self)](bool more) mutable -> kj::Promise<Answer> {
      if (!more) return Answer(ErrorCode::unavailable, "the peer disconnected during the TLS handshake");
      return handshake(kj::mv(self));
    });
  });
}

Error TlsStream::handshakeError() const {
  const long verified = openSsl_.SSL_get_verify_result(ssl_);
  if (verified == X509_V_OK)
    return {ErrorCode::unauthenticated, "the TLS handshake failed: " + openSsl_.takeReason()};
  openSsl_.ERR_clear_error();
  return {ErrorCode::unauthenticated, std::string("the other end's certificate cannot be trusted: ") +
                                          openSsl_.X509_verify_cert_error_string(verified)};
}

kj::Promise<Result<kj::Own<TlsStream>>> TlsStream::refuse(kj::Own<TlsStream> self) {
  using Answer = Result<kj::Own<TlsStream>>;
  const Error why = handshakeError();
  // A close with unread bytes could overtake the alert.
  return flush()
      .then([this] {
        below_->shutdownWrite();
        return discard(kUnreadMax);
      })
      .catch_([](kj::Exception&&) {})  // the peer has disconnected
      .then([why, self = kj::mv(self)] { return Answer(why); });
}

kj::Promise<void> TlsStream::discard(size_t bytesMax) {
  in_.begin = in_.end = 0;
  return fill().then([this, bytesMax](bool more) -> kj::Promise<void> {
    const size_t got = in_.size();
    if (!more || got >= bytesMax) return kj::READY_NOW;
    return discard(bytesMax - got);
  });
}

std::vector<std::string> TlsStream::peerNames() const {
  std::vector<std::string> names;
  X509* const certificate = openSsl_.SSL_get1_peer_certificate(ssl_);
  if (certificate == nullptr) return names;
  const auto add = [&](const std::string& name) {
    // A name with other bytes could be mistaken for another one.
    const bool plain = std::ranges::all_of(name, [](char c) { return c >= ' ' && c <= '~'; });
    if (plain && !name.empty() && name.size() <= kNameMax && names.size() < kNamesMax) names.push_back(name);
  };
  X509_NAME* const subject = openSsl_.X509_get_subject_name(certificate);
  const int place = openSsl_.X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
  if (place >= 0) {
    add(textOf(openSsl_, openSsl_.X509_NAME_ENTRY_get_data(openSsl_.X509_NAME_get_entry(subject, place))));
  }
  auto* const others = static_cast<GENERAL_NAMES*>(
      openSsl_.X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr));
  const auto* const list = reinterpret_cast<const OPENSSL_STACK*>(others);
  for (int i = 0; others != nullptr && i < openSsl_.OPENSSL_sk_num(list); i++) {
    const auto* const name = static_cast<const GENERAL_NAME*>(openSsl_.OPENSSL_sk_value(list, i));
    if (name->type == GEN_DNS || name->type == GEN_EMAIL || name->type == GEN_URI)
      add(textOf(openSsl_, name->d.ia5));
  }
  openSsl_.GENERAL_NAMES_free(others);
  openSsl_.X509_free(certificate);
  return names;
}

kj::Promise<bool> TlsStream::fill() {
  if (ended_) return false;
  const bool full = in_.end == in_.bytes.size();  // at the last read
  smallFills_ = in_.end <= kBufferMin ? smallFills_ + 1 : 0;
  if (in_.bytes.size() == 0 || (in_.bytes.size() > kBufferMin && smallFills_ > kSmallInARow)) {
    in_.bytes = kj::heapArray<kj::byte>(kBufferMin);
  } else if (full && in_.bytes.size() < kBufferMax) {
    in_.bytes = kj::heapArray<kj::byte>(kBufferMax);
    smallFills_ = 0;
  }
  in_.begin = in_.end = 0;  // OpenSSL has consumed all of it
  return below_->tryRead(in_.bytes.begin(), 1, in_.bytes.size()).then([this](size_t got) {
    in_.end = got;
    ended_ = got == 0;
    return got > 0;
  });
}

kj::Promise<void> TlsStream::flush() {
  if (out_.size() == 0) return kj::READY_NOW;
  std::swap(sending_, out_);
  smallFlushes_ = sending_.size() <= kBufferMin ? smallFlushes_ + 1 : 0;
  return below_->write(sending_.bytes.begin() + sending_.begin, sending_.size()).then([this] {
    sending_.begin = sending_.end = 0;
    const bool idle = sending_.bytes.size() > kBufferMin && smallFlushes_ > kSmallInARow;
    if (idle) sending_.bytes = nullptr;
  });
}

void TlsStream::fail(int error) {
  const unsigned long last = openSsl_.ERR_peek_last_error();
  const bool alert = error == SSL_ERROR_SSL && ERR_GET_REASON(last) >= SSL_AD_REASON_OFFSET;
  const std::string text =
      alert ? std::string(kTlsRefusal) + openSsl_.takeReason() : "TLS failed: " + openSsl_.takeReason();
  kj::throwFatalException(disconnected(text));
}

kj::Promise<size_t> TlsStream::tryRead(void* buffer, size_t minBytes, size_t maxBytes) {
  return readOn(static_cast<kj::byte*>(buffer), minBytes, maxBytes, 0);
}

kj::Promise<size_t> TlsStream::readOn(kj::byte* buffer, size_t minBytes, size_t maxBytes, size_t done) {
  while (done < maxBytes) {
    size_t got = 0;
    openSsl_.ERR_clear_error();
    const int read = openSsl_.SSL_read_ex(ssl_, buffer + done, maxBytes - done, &got);
    done += got;
    if (read == 1) continue;
    const int error = openSsl_.SSL_get_error(ssl_, read);
    if (error == SSL_ERROR_ZERO_RETURN) return done;
    if (error != SSL_ERROR_WANT_READ) fail(error);
    if (done >= minBytes) return done;
    return fill().then([=, this](bool more) -> kj::Promise<size_t> {
      if (!more) return done;
      return readOn(buffer, minBytes, maxBytes, done);
    });
  }
  return done;
}

kj::Promise<void> TlsStream::write(const void* buffer, size_t size) {
  piece_ = kj::arrayPtr(static_cast<const kj::byte*>(buffer), size);
  return writeOn(kj::arrayPtr(&piece_, 1), 0);
}

kj::Promise<void> TlsStream::write(kj::ArrayPtr<const kj::ArrayPtr<const kj::byte>> pieces) {
  return writeOn(pieces, 0);
}

void TlsStream::encrypt(kj::ArrayPtr<const kj::ArrayPtr<const kj::byte>>& pieces, size_t& offset) {
  if (shutDown_) kj::throwFatalException(disconnected("write after shutdown"));
  while (pieces.size() > 0 && out_.size() + kRecordMax + kRecordOverhead <= kBufferMax) {
    const auto left = pieces.front().slice(offset, pieces.front().size());
    if (left.size() == 0) {
      pieces = pieces.slice(1, pieces.size());
      offset = 0;
      continue;
    }
    size_t taken = 0;
    openSsl_.ERR_clear_error();
    const int wrote = openSsl_.SSL_write_ex(ssl_, left.begin(), std::min(left.size(), kRecordMax), &taken);
    if (wrote != 1) fail(openSsl_.SSL_get_error(ssl_, wrote));
    offset += taken;
  }
}

kj::Promise<void> TlsStream::writeOn(kj::ArrayPtr<const kj::ArrayPtr<const kj::byte>> pieces, size_t offset) {
  encrypt(pieces, offset);
  return flush().then([this, pieces, offset]() -> kj::Promise<void> {
    if (pieces.size() == 0) return kj::READY_NOW;
    return writeOn(pieces, offset);
  });
}

void TlsStream::shutdownWrite() {
  shutDown_ = true;
  openSsl_.ERR_clear_error();
  openSsl_.SSL_shutdown(ssl_);
  openSsl_.ERR_clear_error();
  // The close notification is short and is sent if the socket accepts it at once; the end of the lower stream
  // means the same.
  if (sending_.size() > 0 || out_.size() == 0) return below_->shutdownWrite();
  closeNotify_ = flush().then([this] { below_->shutdownWrite(); }).eagerlyEvaluate([](kj::Exception&&) {});
}

}  // namespace psd

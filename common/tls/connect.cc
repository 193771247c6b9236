#include "common/tls/connect.h"

#include "common/tls/tls_stream.h"

namespace psd {

kj::Promise<Result<wire::Socket>> streamOver(kj::AsyncIoContext& io, OwnFd fd, const Address& address,
                                             const TlsFiles& files) {
  using Answer = Result<wire::Socket>;
  if (!address.tls) return Answer(wire::wrapSocket(*io.lowLevelProvider, fd.release()));
  const auto failed = [server = address.toString()](const Error& error) -> Answer {
    return Error{error.code, server + ": " + error.message};
  };
  const auto context = TlsContext::forClient(files);
  if (!context.ok()) return failed(context.error());
  auto socket = wire::wrapSocket(*io.lowLevelProvider, fd.release());
  // A socket that is already broken throws at the first write.
  return kj::evalNow([&] { return TlsStream::connect(kj::mv(socket.stream), *context, address.host); })
      .then(
          [failed](Result<kj::Own<TlsStream>> stream) -> Answer {
            if (!stream.ok()) return failed(stream.error());
            return wire::Socket{*kj::mv(stream), nullptr};
          },
          [failed](kj::Exception&& exception) -> Answer {
            if (exception.getType() != kj::Exception::Type::DISCONNECTED)
              kj::throwFatalException(kj::mv(exception));
            return failed({ErrorCode::unavailable, "the connection broke in the TLS handshake"});
          });
}

}  // namespace psd

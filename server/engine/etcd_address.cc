#include "server/engine/etcd_address.h"

#include <kj/debug.h>

#include "common/tls/tls_stream.h"

namespace psd {
namespace {

/// An error that kj's HTTP treats as a broken connection.
kj::Exception noConnection(const std::string& why) {
  return kj::Exception(kj::Exception::Type::DISCONNECTED, __FILE__, __LINE__, kj::heapString(why.c_str()));
}

}  // namespace

kj::Promise<kj::Own<kj::AsyncIoStream>> EtcdAddress::connect() {
  std::shared_ptr<const TlsContext> context;
  if (member_.tls) {
    auto made = TlsContext::forClient(tls_);
    if (!made.ok()) return noConnection(made.message());
    context = *std::move(made);
  }
  return network_.parseAddress(member_.authority().c_str(), member_.port)
      .then([](kj::Own<kj::NetworkAddress> address) {
        auto connected = address->connect();
        return connected.attach(kj::mv(address));
      })
      .then([context, host = member_.host](
                kj::Own<kj::AsyncIoStream> stream) -> kj::Promise<kj::Own<kj::AsyncIoStream>> {
        if (context == nullptr) return kj::mv(stream);
        return TlsStream::connect(kj::mv(stream), context, host)
            .then([](Result<kj::Own<TlsStream>> secured) -> kj::Own<kj::AsyncIoStream> {
              if (!secured.ok()) kj::throwFatalException(noConnection(secured.message()));
              return *kj::mv(secured);
            });
      });
}

kj::Own<kj::ConnectionReceiver> EtcdAddress::listen() {
  KJ_UNIMPLEMENTED("an etcd address cannot be listened on");
}

kj::Own<kj::NetworkAddress> EtcdAddress::clone() { return kj::heap<EtcdAddress>(network_, member_, tls_); }

kj::String EtcdAddress::toString() { return kj::heapString(member_.toString().c_str()); }

}  // namespace psd

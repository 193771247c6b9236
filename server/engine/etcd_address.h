#pragma once

#include <kj/async-io.h>

#include "server/engine/etcd_options.h"

namespace psd {

/// Connects to a member of etcd, with TLS where it is https://. The name is looked up, and the files are
/// read, each time, so that what is new in them holds for the next connection. Owned by one event loop.
class EtcdAddress final : public kj::NetworkAddress {
 public:
  /// All are outlived by what they refer to.
  EtcdAddress(kj::Network& network, const EtcdMember& member, const TlsFiles& tls)
      : network_(network), member_(member), tls_(tls) {}

  kj::Promise<kj::Own<kj::AsyncIoStream>> connect() override;
  kj::Own<kj::ConnectionReceiver> listen() override;
  kj::Own<kj::NetworkAddress> clone() override;
  kj::String toString() override;

 private:
  kj::Network& network_;
  const EtcdMember& member_;
  const TlsFiles& tls_;
};

}  // namespace psd

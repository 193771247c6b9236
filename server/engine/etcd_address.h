#pragma once

#include <kj/async-io.h>

#include "server/engine/etcd_options.h"

namespace psd {

/// Connects to an etcd member, with TLS for https://. Resolves the name and reads the TLS files for each
/// connection, so that changes apply to the next one. Owned by one event loop.
class EtcdAddress final : public kj::NetworkAddress {
 public:
  /// All references outlive the object.
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

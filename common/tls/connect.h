#pragma once

#include <kj/async-io.h>

#include "common/auth/credentials.h"
#include "common/os/address.h"
#include "common/os/socket.h"
#include "common/wire/message_stream.h"

namespace psd {

/// Creates a stream from a socket connected to the address, with a TLS handshake for tls://. The files are
/// read each time, so that changes apply to the next connection. unauthenticated: the daemon's certificate
/// cannot be trusted, or the daemon does not speak TLS. No time limit.
kj::Promise<Result<wire::Socket>> streamOver(kj::AsyncIoContext& io, OwnFd fd, const Address& address,
                                             const TlsFiles& files);

}  // namespace psd

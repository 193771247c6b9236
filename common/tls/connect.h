#pragma once

#include <kj/async-io.h>

#include "common/auth/credentials.h"
#include "common/os/address.h"
#include "common/os/socket.h"
#include "common/wire/message_stream.h"

namespace psd {

/// Makes a stream of a socket that is connected to the address, with a TLS handshake where that is tls://.
/// The files are read each time, so that what is new in them holds for the next connection. unauthenticated:
/// the daemon's certificate cannot be trusted, or the daemon does not speak TLS. There is no limit of time.
kj::Promise<Result<wire::Socket>> streamOver(kj::AsyncIoContext& io, OwnFd fd, const Address& address,
                                             const TlsFiles& files);

}  // namespace psd

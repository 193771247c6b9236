#pragma once

#include <cstdint>

namespace psd {

// Connections beyond limits.connections, on which only who may administer the daemon gets in, so that those
// who use up that limit, or set it too low, do not keep operators out. In descriptors each takes its socket
// alone.

/// For whoever shows that it is an operator.
inline constexpr uint32_t kOperatorConnections = 8;
/// And beyond those: for processes of the daemon's own user and of root, at a Unix socket.
inline constexpr uint32_t kLocalOperatorConnections = 8;

}  // namespace psd

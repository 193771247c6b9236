#pragma once

#include <cstdint>

namespace psd {

// Connections beyond limits.connections, reserved for operators, so that peers that exhaust that limit, or a
// limit set too low, cannot lock them out. Each takes one descriptor, its socket.

/// For authenticated operators.
inline constexpr uint32_t kOperatorConnections = 8;
/// In addition to those, for processes of the daemon's own user and of root on a Unix socket.
inline constexpr uint32_t kLocalOperatorConnections = 8;

}  // namespace psd

#pragma once

namespace psd {

/// How long to wait for the daemon's answer.
enum class Patience { asToConnect, endless };

}  // namespace psd

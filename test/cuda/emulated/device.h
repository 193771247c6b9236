#pragma once

#include <cstddef>

namespace psd::emulated {

/// Control of the emulated devices by tests. There are two, of 4 GiB each. Thread-safe.

/// From now on the device does no queued work, and each call that uses it returns cudaErrorLaunchFailure, as
/// after a failed kernel. Lasts until the program ends.
void failDevice(int device);

/// From now on the device has at most this many bytes free; other programs use the rest.
void leaveFree(int device, size_t bytes);

}  // namespace psd::emulated

#pragma once

#include <cstddef>

namespace psd::emulated {

/// What tests ask of the emulated devices. There are two, of 4 GiB each. Thread-safe.

/// From now on nothing that is queued on the device is done, and each call that uses it answers
/// cudaErrorLaunchFailure, as after a kernel that went wrong. For the rest of the program.
void failDevice(int device);

/// From now on the device has so many bytes free: other programs have the rest.
void leaveFree(int device, size_t bytes);

}  // namespace psd::emulated

#pragma once

#include <string>

#include <ATen/core/Tensor.h>

namespace psd {

/// An f32 tensor over shared, possibly read-only memory. An operation that requests writable memory, also
/// through an alias or view, gets a copy, which replaces the memory of the tensor and of all its aliases
/// (LibTorch's copy-on-write storage). So no operation on the tensor modifies `values`, which outlive it.
at::Tensor guardedView(const float* values, at::IntArrayRef shape, const at::Device& device);

/// Whether a tensor is such a view, directly or by set_data(), and its memory has not been replaced
/// otherwise.
bool isGuarded(const at::Tensor& tensor);

/// Whether the values of a guarded tensor differ from the original, or its memory was replaced. An operation
/// that requests writable memory but does not change values does not count. Synchronizes with the device.
bool wasWritten(const at::Tensor& tensor);

/// The TorchScript location, "points.py:12", that first requested writable memory of a guarded tensor; empty
/// if none did or it is unknown.
std::string placeOfWrite(const at::Tensor& tensor);

}  // namespace psd

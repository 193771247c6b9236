#pragma once

#include <string>

#include <ATen/core/Tensor.h>

namespace psd {

/// A tensor of f32 over memory that others read, and that may not be writable at all. An operation that asks
/// for its memory to write to, by whatever name, view or list, gets a copy, which the tensor and all that
/// share its memory have from then on (a copy-on-write storage of LibTorch). So nothing that a program does
/// with it reaches the memory. `values` outlive it.
at::Tensor guardedView(const float* values, at::IntArrayRef shape, const at::Device& device);

/// Whether a tensor is such a view, or was made one by set_data(), and has had no other memory since.
bool isGuarded(const at::Tensor& tensor);

/// Whether a tensor that was guarded has other values than the memory had, or was given other memory. Some
/// operations ask for memory to write to and only read it: that is no write. Waits for the device.
bool wasWritten(const at::Tensor& tensor);

/// The place of the TorchScript that first asked for a guarded tensor's memory to write to, "points.py:12";
/// empty where none did or it is not known.
std::string placeOfWrite(const at::Tensor& tensor);

}  // namespace psd

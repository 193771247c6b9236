#pragma once

#include <span>
#include <string>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "trainer/client/api/arena_values.h"

namespace psd::python {

/// A writable flat float32 array, in host memory or on a CUDA device. Keeps the underlying memory alive. Can
/// be copied and destroyed with or without the GIL.
using Values = nanobind::ndarray<float, nanobind::ndim<1>, nanobind::c_contig>;
/// A read-only flat float32 array.
using ConstValues = nanobind::ndarray<const float, nanobind::ndim<1>, nanobind::c_contig>;

/// The CUDA device on which arrays are expected. A value type.
struct CudaDevice {
  int index = 0;
  uint64_t stream = 0;  ///< a cudaStream_t, which waits for pending work on an array
};

/// How the flat arrays of a model's values stand for its elements: one float32 for each, or, where some have
/// 16 bits, the bytes of a native arena (ArenaValues) taken as float32. The size of an array tells which. A
/// value type.
class ArrayForm {
 public:
  ArrayForm() = default;
  explicit ArrayForm(const ModelSpec& model);

  /// The size of a native array, in float32.
  uint64_t nativeSize() const { return nativeSize_; }
  /// Whether an array of the model has this size, in float32.
  bool fits(uint64_t size) const { return size == elements_ || size == nativeSize_; }
  template <class Float>
  BasicArenaValues<Float> operator()(std::span<Float> array) const {
    if (array.size() == elements_ || array.size() != nativeSize_) return array;
    using Byte = typename BasicArenaValues<Float>::Byte;
    return BasicArenaValues<Float>::native(reinterpret_cast<Byte*>(array.data()), elements_);
  }

 private:
  uint64_t elements_ = 0, nativeSize_ = 0;
};

inline std::span<float> spanOf(const Values& values) { return {values.data(), values.size()}; }
inline std::span<const float> spanOf(const ConstValues& values) { return {values.data(), values.size()}; }

/// The array that a caller passed as `name`, without a copy: from numpy, PyTorch, or any library with DLPack
/// or the buffer protocol. It must be in host memory or, unless `device` is null, on that device; an empty
/// array may be anywhere. Otherwise throws TypeError, which describes the actual argument. With the GIL.
Values valuesOf(nanobind::handle array, const char* name, const CudaDevice* device = nullptr);
ConstValues constValuesOf(nanobind::handle array, const char* name, const CudaDevice* device = nullptr);
/// Makes the device's stream wait for the pending work of the array's library on the array. Returns the array
/// as a DLPack capsule. With the GIL.
nanobind::object exportDlpack(nanobind::handle array, const CudaDevice& device);

/// Whether the client can use the values in place; a slice of an array may be misaligned.
bool isAligned(const void* values);
/// An aligned array with unspecified contents. With the GIL.
Values alignedArray(size_t size);
/// The values in place if they are aligned, otherwise an aligned copy. With the GIL.
ConstValues aligned(const ConstValues& values);

/// Row ids from a 64-bit integer array; a negative id stands for the unsigned number with the same bits.
std::vector<uint64_t> idsOf(nanobind::handle array);

}  // namespace psd::python

#pragma once

#include <span>
#include <string>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

namespace psd::python {

/// A flat float32 array to be written, in host memory or a CUDA device's; what it lies in lives as long as
/// this object. Copied and dropped with or without the GIL.
using Values = nanobind::ndarray<float, nanobind::ndim<1>, nanobind::c_contig>;
/// Values that are only read.
using ConstValues = nanobind::ndarray<const float, nanobind::ndim<1>, nanobind::c_contig>;

/// A CUDA device of which arrays are asked for. A value type.
struct CudaDevice {
  int index = 0;
  uint64_t stream = 0;  ///< a cudaStream_t, which is made to wait for what is under way on an array
};

inline std::span<float> spanOf(const Values& values) { return {values.data(), values.size()}; }
inline std::span<const float> spanOf(const ConstValues& values) { return {values.data(), values.size()}; }

/// What a caller gave as `name`, without a copy: from numpy, PyTorch or whatever speaks DLPack or the buffer
/// protocol, in host memory or, unless `device` is null, in the device's, but for an array of nothing.
/// TypeError, naming what came instead. With the GIL.
Values valuesOf(nanobind::handle array, const char* name, const CudaDevice* device = nullptr);
ConstValues constValuesOf(nanobind::handle array, const char* name, const CudaDevice* device = nullptr);
/// Has the device's stream wait for what is under way on an array of it, as its library says. Gives the
/// array as a DLPack capsule. With the GIL.
nanobind::object handOver(nanobind::handle array, const CudaDevice& device);

/// Whether the client can use values where they lie: those of a part of an array may begin anywhere.
bool isAligned(const void* values);
/// An array where the client can use it, with nothing in it as yet. With the GIL.
Values alignedArray(size_t size);
/// The values where the client can use them: in place, or copied. With the GIL.
ConstValues aligned(const ConstValues& values);

/// Row ids of any integer type of 64 bits: a negative one stands for the number with the same bits.
std::vector<uint64_t> idsOf(nanobind::handle array);

}  // namespace psd::python

#include "trainer/python/array_arguments.h"

#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include "common/types/model_layout.h"
#include "trainer/client/api/client.h"

namespace nb = nanobind;

namespace psd::python {
namespace {

std::string textOf(const nb::object& object) { return nb::cast<std::string>(nb::str(object)); }

/// Whether the array has an attribute `name` (or `name`.`part`) that is, or returns, False.
bool isFalse(nb::handle array, const char* name, const char* part = nullptr) {
  if (!nb::hasattr(array, name)) return false;
  nb::object value = array.attr(name);
  if (part) value = nb::getattr(value, part, nb::none());
  if (PyCallable_Check(value.ptr())) value = value();
  bool says = true;
  return nb::try_cast(value, says) && !says;
}

std::string describe(nb::handle array) {
  std::string text = textOf(nb::object(array.type().attr("__name__")));
  for (const char* attribute : {"dtype", "shape", "device"}) {
    if (nb::hasattr(array, attribute))
      text += fmt::format(", {} {}", attribute, textOf(array.attr(attribute)));
  }
  if (isFalse(array, "flags", "c_contiguous") || isFalse(array, "is_contiguous")) text += ", not contiguous";
  if (isFalse(array, "flags", "writeable")) text += ", read-only";
  return text;
}

[[noreturn]] void refuse(nb::handle array, const char* name, const std::string& what,
                         const std::string& more = {}) {
  throw nb::type_error(fmt::format("{} must be {}, not {}{}", name, what, describe(array), more).c_str());
}

/// Whether the array's library treats arrays as immutable values, which may share memory.
bool isImmutable(nb::handle array) {
  const auto module = nb::cast<std::string>(nb::str(nb::getattr(array.type(), "__module__", nb::str(""))));
  const std::string package = module.substr(0, module.find('.'));
  return package == "jax" || package == "jaxlib" || package == "tensorflow";
}

template <class T>
using OnHost = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

/// The array's device, type and index as DLPack numbers them; nothing if its library does not say.
std::optional<std::pair<int, int>> deviceOf(nb::handle array) {
  if (!nb::hasattr(array, "__dlpack_device__")) return std::nullopt;
  try {
    const nb::object device = array.attr("__dlpack_device__")();
    return std::pair(nb::cast<int>(nb::int_(device[0])), nb::cast<int>(nb::int_(device[1])));
  } catch (const std::exception&) {  // a device that DLPack has no number for
    return std::nullopt;
  }
}

/// `kind`: a description of the expected array, for error messages.
template <class T>
nb::ndarray<T, nb::ndim<1>, nb::c_contig> flatOf(nb::handle array, const char* name, const char* kind,
                                                 const CudaDevice* device) {
  using Flat = nb::ndarray<T, nb::ndim<1>, nb::c_contig>;
  if (device == nullptr) {
    const std::string what = fmt::format("{} in host memory", kind);
    OnHost<T> given;
    if (nb::try_cast(array, given, /*convert=*/false) && given.is_valid()) return Flat(given);
    const auto where = deviceOf(array);
    const bool isOnCuda = where && where->first == nb::device::cuda::value;
    refuse(array, name, what, isOnCuda ? "; psd.Client's `device` is for those of a CUDA device" : "");
  }
  const std::string what = fmt::format("{} in the memory of cuda:{}", kind, device->index);
  Flat given;
  if (deviceOf(array) == std::pair<int, int>(nb::device::cuda::value, device->index)) {
    try {
      if (nb::try_cast(exportDlpack(array, *device), given, false) && given.is_valid()) return given;
    } catch (nb::python_error& error) {
      if (!error.matches(PyExc_BufferError)) throw;
      refuse(array, name, what, ": " + textOf(nb::borrow<nb::object>(error.value())));
    }
  } else if (OnHost<T> nothing;
             nb::try_cast(array, nothing, false) && nothing.is_valid() && nothing.size() == 0) {
    return Flat(nothing);
  }
  refuse(array, name, what);
}

template <class Id>
using Ids = nb::ndarray<const Id, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

}  // namespace

ArrayForm::ArrayForm(const ModelSpec& model) {
  const ModelLayout layout(model);
  elements_ = layout.totalElements();
  nativeSize_ = layout.byteAt(elements_) / sizeof(float);
}

Values valuesOf(nb::handle array, const char* name, const CudaDevice* device) {
  constexpr const char* kKind = "a flat, contiguous, writable float32 array";
  if (isImmutable(array)) {
    const std::string where = device ? fmt::format("the memory of cuda:{}", device->index) : "host memory";
    refuse(array, name, fmt::format("{} in {}", kKind, where), ", which never changes");
  }
  return flatOf<float>(array, name, kKind, device);
}

ConstValues constValuesOf(nb::handle array, const char* name, const CudaDevice* device) {
  return flatOf<const float>(array, name, "a flat, contiguous float32 array", device);
}

nb::object exportDlpack(nb::handle array, const CudaDevice& device) {
  return nb::module_::import_("psd._cuda").attr("export_dlpack")(array, device.stream);
}

bool isAligned(const void* values) { return reinterpret_cast<uintptr_t>(values) % kValueAlignment == 0; }

Values alignedArray(size_t size) {
  auto array = std::make_unique<float[]>(size);
  const nb::capsule owner(array.get(), [](void* values) noexcept { delete[] static_cast<float*>(values); });
  return Values(array.release(), {size}, owner);
}

ConstValues aligned(const ConstValues& values) {
  if (isAligned(values.data())) return values;
  const Values copy = alignedArray(values.size());
  std::memcpy(copy.data(), values.data(), values.nbytes());
  return ConstValues(copy);
}

std::vector<uint64_t> idsOf(nb::handle array) {
  Ids<int64_t> negativeToo;
  if (nb::try_cast(array, negativeToo, false) && negativeToo.is_valid()) {
    return std::vector<uint64_t>(negativeToo.data(), negativeToo.data() + negativeToo.size());
  }
  Ids<uint64_t> ids;
  if (!nb::try_cast(array, ids, false) || !ids.is_valid())
    refuse(array, "ids", "a flat, contiguous uint64 or int64 array in host memory");
  return std::vector<uint64_t>(ids.data(), ids.data() + ids.size());
}

}  // namespace psd::python

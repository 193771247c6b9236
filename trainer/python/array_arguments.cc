#include "trainer/python/array_arguments.h"

#include <cstring>
#include <memory>

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include "trainer/client/client.h"

namespace nb = nanobind;

namespace psd::python {
namespace {

std::string textOf(const nb::object& object) { return nb::cast<std::string>(nb::str(object)); }

/// Whether the array says so of itself: by an attribute, of another one's where two are named, or a method.
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

template <class Array>
Array arrayOf(nb::handle array, const char* name, const char* what) {
  Array cast;
  if (!nb::try_cast(array, cast, /*convert=*/false) || !cast.is_valid()) {
    throw nb::type_error(fmt::format("{} must be {}, not {}", name, what, describe(array)).c_str());
  }
  return cast;
}

/// Of libraries whose arrays are values, which they share and expect never to change.
bool isImmutable(nb::handle array) {
  const auto module = nb::cast<std::string>(nb::str(nb::getattr(array.type(), "__module__", nb::str(""))));
  const std::string package = module.substr(0, module.find('.'));
  return package == "jax" || package == "jaxlib" || package == "tensorflow";
}

template <class Id>
using Ids = nb::ndarray<const Id, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

}  // namespace

Values valuesOf(nb::handle array, const char* name) {
  constexpr const char* kWhat = "a flat, contiguous, writable float32 array in host memory";
  if (isImmutable(array)) {
    throw nb::type_error(
        fmt::format("{} must be {}, not {}, which never changes", name, kWhat, describe(array)).c_str());
  }
  return arrayOf<Values>(array, name, kWhat);
}

ConstValues constValuesOf(nb::handle array, const char* name) {
  return arrayOf<ConstValues>(array, name, "a flat, contiguous float32 array in host memory");
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
  const auto ids =
      arrayOf<Ids<uint64_t>>(array, "ids", "a flat, contiguous uint64 or int64 array in host memory");
  return std::vector<uint64_t>(ids.data(), ids.data() + ids.size());
}

}  // namespace psd::python

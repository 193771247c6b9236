#include "trainer/python/errors.h"

#include <string>

#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace psd::python {

void raise(const Error& error) {
  const std::string code(errorCodeName(error.code));
  const nb::object exception = nb::module_::import_("psd.errors")
                                   .attr("of")(code.c_str(), error.message.c_str(), isRetryable(error.code));
  PyErr_SetObject(exception.type().ptr(), exception.ptr());
  throw nb::python_error();
}

}  // namespace psd::python

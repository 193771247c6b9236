#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "trainer/client/api/version_publisher.h"
#include "trainer/python/guarded.h"

namespace psd::python {

/// The publisher behind psd.Publisher. Used with the GIL, by any thread.
class PythonVersionPublisher {
 public:
  using Bytes =
      nanobind::ndarray<const uint8_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
  /// Name, dtype, shape, offset, extent, bytes: see TensorPart.
  using Part = std::tuple<std::string, std::string, std::vector<uint64_t>, std::vector<uint64_t>,
                          std::vector<uint64_t>, Bytes>;

  /// Connects as VersionPublisher::connect() does; throws its error.
  PythonVersionPublisher(ClientOptions options, VersionPublisher::Place place);

  /// `timeout` in seconds.
  VersionInfo publish(uint64_t step, const std::vector<Part>& parts, std::optional<double> timeout);
  /// See Guarded.
  void close() { publisher_.close(); }

 private:
  Guarded<VersionPublisher> publisher_;
};

void bindPublisher(nanobind::module_& m);

}  // namespace psd::python

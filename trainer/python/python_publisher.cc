#include "trainer/python/python_publisher.h"

#include <utility>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "trainer/python/client_arguments.h"

namespace nb = nanobind;

namespace psd::python {

using namespace nb::literals;

PythonVersionPublisher::PythonVersionPublisher(ClientOptions options, VersionPublisher::Place place)
    : publisher_("publisher", std::move(options),
                 [place](const ClientOptions& given) { return VersionPublisher::connect(given, place); }) {}

VersionInfo PythonVersionPublisher::publish(uint64_t step, const std::vector<Part>& parts,
                                            std::optional<double> timeout) {
  std::optional<std::chrono::milliseconds> time;
  if (timeout) time = milliseconds("timeout", *timeout);
  std::vector<TensorPart> given;
  for (const auto& [name, dtype, shape, offset, extent, bytes] : parts) {
    given.push_back({name, dtype, shape, offset, extent,
                     std::as_bytes(std::span<const uint8_t>(bytes.data(), bytes.shape(0)))});
  }
  return take(
      publisher_.run([&](VersionPublisher& publisher) { return publisher.publish(step, given, time); }));
}

void bindPublisher(nb::module_& m) {
  nb::class_<PythonVersionPublisher>(m, "VersionPublisher", nb::is_weak_referenceable())
      .def(
          "__init__",
          [](PythonVersionPublisher* self, std::vector<std::string> servers, double connectTimeout,
             double retryTimeout, nb::object onEvent, std::optional<std::string> token, CredentialFlags files,
             uint32_t rank, uint32_t worldSize) {
            new (self)
                PythonVersionPublisher(optionsOf({std::move(servers), connectTimeout, retryTimeout,
                                                  std::move(onEvent), std::move(token), std::move(files)}),
                                       {rank, worldSize});
          },
          "servers"_a, "connect_timeout"_a, "retry_timeout"_a, "on_event"_a.none(), "token"_a.none(),
          "files"_a, "rank"_a, "world_size"_a)
      .def("publish", &PythonVersionPublisher::publish, "step"_a, "parts"_a, "timeout"_a.none())
      .def("close", &PythonVersionPublisher::close);
}

}  // namespace psd::python

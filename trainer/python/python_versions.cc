#include "trainer/python/python_versions.h"

#include <string>
#include <thread>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "trainer/python/client_arguments.h"
#include "trainer/python/errors.h"

namespace nb = nanobind;

namespace psd::python {
namespace {

using namespace nb::literals;

/// The bytes of a version's file, without a copy: the array keeps them alive.
nb::object bytesOf(const FetchedVersion& version) {
  using File = std::shared_ptr<std::byte[]>;
  const nb::capsule owner(new File(version.file),
                          [](void* file) noexcept { delete static_cast<File*>(file); });
  return nb::cast(
      nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(version.file.get(), {version.info.bytes}, owner));
}

/// Memory that is mapped from a file, and unmapped at the end. Unmapping takes tens of milliseconds for each
/// GiB, so it happens on a thread of its own: a reader that changes to the next version does not wait for it.
struct Mapping {
  void* begin;
  size_t bytes;

  void end() const noexcept {
    constexpr size_t kQuick = 1 << 20;
    const auto unmap = [mapping = *this] { munmap(mapping.begin, mapping.bytes); };
    if (bytes <= kQuick) return unmap();
    madvise(begin, bytes, MADV_DONTFORK);  // a child that is forked now would keep the file and its locks
    try {
      std::thread(unmap).detach();
    } catch (...) {
      unmap();
    }
  }
};

/// The bytes of a file from `offset` on, a multiple of the page size. What is written to them stays in this
/// process. The file stays open, with its locks, until the array's memory is unmapped, soon after the array's
/// end.
nb::object mapFile(int fd, uint64_t offset, uint64_t bytes) {
  struct stat status {};
  if (fstat(fd, &status) != 0) {
    PyErr_SetFromErrno(PyExc_OSError);
    throw nb::python_error();
  }
  const auto size = static_cast<uint64_t>(status.st_size);
  if (bytes == 0 || offset > size || bytes > size - offset) {  // an access would be a SIGBUS
    throw nb::value_error(
        fmt::format("{} bytes from {} on are not in a file of {}", bytes, offset, size).c_str());
  }
  void* const begin = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd,
                           static_cast<off_t>(offset));
  if (begin == MAP_FAILED) {
    PyErr_SetFromErrno(PyExc_OSError);
    throw nb::python_error();
  }
  const nb::capsule owner(new Mapping{begin, bytes}, [](void* mapping) noexcept {
    static_cast<Mapping*>(mapping)->end();
    delete static_cast<Mapping*>(mapping);
  });
  return nb::cast(nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(begin, {bytes}, owner));
}

using TensorFields = std::tuple<std::string, std::string, std::vector<uint64_t>, uint64_t, uint64_t>;
std::vector<TensorFields> tensorsOf(const FetchedVersion& version) {
  std::vector<TensorFields> tensors;
  for (const auto& [name, dtype, shape, begin, end] : version.tensors) {
    tensors.emplace_back(name, dtype, shape, begin, end);
  }
  return tensors;
}

std::string describe(const PublishedVersion& version) {
  return fmt::format(
      "PublishedVersion(number={}, step={}, created='{}', moment='{}', bytes={}, history={:#x})",
      version.number, version.step, version.created, momentName(version.moment), version.bytes,
      version.history);
}

}  // namespace

PythonVersionReader::PythonVersionReader(ClientOptions options, const FreshnessBound& bound)
    : reader_("follower", std::move(options),
              [&bound](const ClientOptions& given) { return VersionReader::connect(given, bound); }) {}

VersionFreshness PythonVersionReader::freshness() {
  return take(reader_.run([](VersionReader& reader) { return reader.freshness(); }));
}

std::vector<PublishedVersion> PythonVersionReader::versions() {
  return take(reader_.run([](VersionReader& reader) { return reader.versions(); }));
}

PublishedVersion PythonVersionReader::waitFor(uint64_t number, std::optional<double> timeout) {
  std::optional<std::chrono::milliseconds> time;
  if (timeout) time = milliseconds("timeout", *timeout);
  return take(reader_.run([number, time](VersionReader& reader) { return reader.waitFor(number, time); }));
}

FetchedVersion PythonVersionReader::fetch(uint64_t number, const std::optional<FetchedVersion>& base) {
  return take(reader_.run(
      [number, &base](VersionReader& reader) { return reader.fetch(number, base ? &*base : nullptr); }));
}

uint64_t PythonVersionReader::pin(uint64_t number, uint64_t seconds) {
  return take(reader_.run([number, seconds](VersionReader& reader) {
    return reader.pin(number, std::chrono::seconds(seconds));
  }));
}

void PythonVersionReader::unpin(uint64_t lease) {
  check(reader_.run([lease](VersionReader& reader) { return reader.unpin(lease); }));
}

void bindVersions(nb::module_& m) {
  m.def("map_file", &mapFile, "fd"_a, "offset"_a, "bytes"_a,
        nb::sig("def map_file(fd: int, offset: int, bytes: int) -> numpy.typing.NDArray[numpy.uint8]"));
  nb::class_<PublishedVersion>(m, "PublishedVersion", "A version of the model that a daemon has published.")
      .def(
          "__init__",
          [](PublishedVersion* at, uint64_t number, uint64_t step, std::string created,
             const std::string& moment, uint64_t bytes, uint64_t history) {
            new (at) PublishedVersion{number, history, step, std::move(created), momentNamed(moment), bytes};
          },
          nb::kw_only(), nb::arg("number"), nb::arg("step"), nb::arg("created"), nb::arg("moment"),
          nb::arg("bytes"), nb::arg("history"))
      .def_ro("number", &PublishedVersion::number, "Rises with every version, also across restarts.")
      .def_ro("step", &PublishedVersion::step,
              "Number of updates that every part of it contains, or the step that psd.Publisher gave it.")
      .def_ro("created", &PublishedVersion::created, "UTC, as \"2026-11-29T12:00:00Z\".")
      .def_prop_ro(
          "moment", [](const PublishedVersion& version) { return std::string(momentName(version.moment)); },
          "'snapshot': of one instant; 'round': of one instant at which all parameter groups had "
          "finished the "
          "same round; 'step': of one step of its publishers; 'live': of no one instant, since updates that "
          "take no lock continued.")
      .def_ro("bytes", &PublishedVersion::bytes, "Size of its file.")
      .def_ro("history", &PublishedVersion::history,
              "A random number: numbers of versions of different histories cannot be compared.")
      .def("__repr__", [](const PublishedVersion& version) { return describe(version); });
  nb::class_<FetchedVersion>(m, "FetchedVersion", "A version in memory, verified.")
      .def_ro("info", &FetchedVersion::info)
      .def_ro("received", &FetchedVersion::received)
      .def_ro("patch_fault", &FetchedVersion::patchFault)
      .def_prop_ro("file", &bytesOf,
                   nb::for_getter(nb::sig("def file(self) -> numpy.typing.NDArray[numpy.uint8]")))
      .def_prop_ro("tensors", &tensorsOf);
  nb::class_<VersionFreshness>(
      m, "Freshness",
      "How the versions of a daemon compare with those of their source: the daemon that "
      "trains the model or stores the weights.")
      .def_ro("newest", &VersionFreshness::newest, "Number of the daemon's newest version; 0: none.")
      .def_ro("source_newest", &VersionFreshness::sourceNewest,
              "Number of the source's newest version, as far as the daemon knows; 0: none.")
      .def_prop_ro(
          "versions_behind",
          [](const VersionFreshness& freshness) -> std::optional<uint64_t> {
            const uint64_t behind = freshness.versionsBehind();
            return behind == UINT64_MAX ? std::nullopt : std::optional(behind);
          },
          "Newer versions of the source; None: unknown, or the source has begun another history.")
      .def_prop_ro(
          "seconds_behind",
          [](const VersionFreshness& freshness) -> std::optional<double> {
            if (freshness.age >= VersionFreshness::kAgeUnknown) return std::nullopt;
            return std::chrono::duration<double>(freshness.age).count();
          },
          "Time since the daemon was known to have all versions of the source; 0: it is the source; None: "
          "unknown.")
      .def_prop_ro(
          "hops",
          [](const VersionFreshness& freshness) -> std::optional<size_t> {
            if (freshness.path.size() < 2 && freshness.age > std::chrono::milliseconds(0))
              return std::nullopt;
            return freshness.path.size() - 1;
          },
          "Daemons from this one to the source; 0: it is the source; None: unknown.")
      .def("__repr__", [](const VersionFreshness& freshness) {
        const bool isKnown = freshness.age < VersionFreshness::kAgeUnknown;
        const uint64_t behind = freshness.versionsBehind();
        return fmt::format(
            "Freshness(newest={}, source_newest={}, versions_behind={}, seconds_behind={}, hops={})",
            freshness.newest, freshness.sourceNewest, behind == UINT64_MAX ? "None" : std::to_string(behind),
            isKnown ? fmt::format("{:.3f}", std::chrono::duration<double>(freshness.age).count()) : "None",
            freshness.path.size() < 2 && freshness.age.count() > 0
                ? "None"
                : std::to_string(freshness.path.size() - 1));
      });
  nb::class_<PythonVersionReader>(m, "VersionReader", nb::is_weak_referenceable())
      .def(
          "__init__",
          [](PythonVersionReader* self, std::vector<std::string> servers, double connectTimeout,
             double retryTimeout, nb::object onEvent, std::optional<std::string> token, CredentialFlags files,
             std::optional<uint64_t> versionsBehind, std::optional<double> secondsBehind) {
            FreshnessBound bound{.versions = versionsBehind};
            if (secondsBehind) bound.time = milliseconds("max_seconds_behind", *secondsBehind);
            new (self)
                PythonVersionReader(optionsOf({std::move(servers), connectTimeout, retryTimeout,
                                               std::move(onEvent), std::move(token), std::move(files)}),
                                    bound);
          },
          "servers"_a, "connect_timeout"_a, "retry_timeout"_a, "on_event"_a.none(), "token"_a.none(),
          "files"_a, "max_versions_behind"_a.none(), "max_seconds_behind"_a.none())
      .def("freshness", &PythonVersionReader::freshness)
      .def("versions", &PythonVersionReader::versions)
      .def("wait_for", &PythonVersionReader::waitFor, "number"_a, "timeout"_a.none())
      .def("fetch", &PythonVersionReader::fetch, "number"_a, "base"_a.none())
      .def("pin", &PythonVersionReader::pin, "number"_a, "seconds"_a)
      .def("unpin", &PythonVersionReader::unpin, "lease"_a)
      .def("close", &PythonVersionReader::close);
}

}  // namespace psd::python

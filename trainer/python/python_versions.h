#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <nanobind/nanobind.h>

#include "trainer/client/api/version_reader.h"
#include "trainer/python/guarded.h"

namespace psd::python {

/// The reader behind psd.Follower. Used with the GIL, by any thread.
class PythonVersionReader {
 public:
  /// Connects as VersionReader::connect() does; throws its error.
  PythonVersionReader(ClientOptions options, const FreshnessBound& bound);

  std::vector<PublishedVersion> versions();
  VersionFreshness freshness();
  /// `timeout` in seconds.
  PublishedVersion waitFor(uint64_t number, std::optional<double> timeout);
  FetchedVersion fetch(uint64_t number, const std::optional<FetchedVersion>& base);
  uint64_t pin(uint64_t number, uint64_t seconds);
  void unpin(uint64_t lease);
  /// See Guarded.
  void close() { reader_.close(); }

 private:
  Guarded<VersionReader> reader_;
};

void bindVersions(nanobind::module_& m);

}  // namespace psd::python

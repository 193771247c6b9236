#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <nanobind/nanobind.h>
#include <sys/types.h>

#include "trainer/client/api/version_reader.h"

namespace psd::python {

/// The reader behind psd.Follower. Signals reach Python while a call waits; if a handler raises, the wait
/// ends. Used with the GIL, by any thread.
class PythonVersionReader {
 public:
  /// Connects as VersionReader::connect() does; throws its error.
  explicit PythonVersionReader(ClientOptions options);
  /// See close(). In a forked process, which does not have the reader's threads, it does nothing.
  ~PythonVersionReader();
  PythonVersionReader(const PythonVersionReader&) = delete;
  PythonVersionReader& operator=(const PythonVersionReader&) = delete;

  std::vector<PublishedVersion> versions();
  /// `timeout` in seconds.
  PublishedVersion waitFor(uint64_t number, std::optional<double> timeout);
  FetchedVersion fetch(uint64_t number, const std::optional<FetchedVersion>& base);
  uint64_t pin(uint64_t number, uint64_t seconds);
  void unpin(uint64_t lease);
  /// Ends the calls of other threads; the last of them destroys the reader. No call may follow.
  void close();

 private:
  /// Runs `work(reader)` without the GIL and returns its result.
  template <class Work>
  auto run(const Work& work);
  bool isAnotherProcess() const;

  const pid_t process_;
  std::shared_ptr<VersionReader> reader_;  // null once closed
};

void bindVersions(nanobind::module_& m);

}  // namespace psd::python

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "common/status/status.h"
#include "trainer/client/api/client.h"

namespace psd {

/// Options of `bench rows`.
struct RowsBenchOptions {
  ClientOptions client;
  uint64_t ids = 100'000;     ///< per pull or push, of all tables together
  uint32_t dim = 32;          ///< of every table
  uint32_t tables = 1;        ///< rows and ids are divided evenly among them
  uint64_t rows = 1'000'000;  ///< of all tables together, created before the measurement
  double skew = 0;            ///< exponent of the Zipf distribution of ids; 0: uniform
  bool create = false;        ///< measure pushes that create `rows` rows; no pulls
  uint32_t creators = 0;      ///< additional trainers that create rows meanwhile, each a process
  double seconds = 2;         ///< duration of the measurement; unused with `create`
};

/// Times are seconds; rows are distinct rows.
struct RowsBenchReport {
  struct Calls {
    uint64_t count = 0;
    double median = 0, p99 = 0, p999 = 0, longest = 0;  ///< of one call
    double rowsPerSecond = 0;                           ///< median
  };
  RowsBenchOptions options;
  double rows = 0;  ///< mean per pull or push
  double plan = 0;  ///< median of RowBatch::make(), not included in the other times
  Calls pulls;      ///< none with `create`
  Calls pushes;     ///< until they are applied
  std::string policy, device;
  std::string rowTransport;  ///< as in JoinInfo
};

/// Alternates pulls and pushes of rows, with newly drawn ids for each. Measures a running daemon, which must
/// hold no other model: the model consists of tables only, gradients are zeros. Blocks. Creators are forked,
/// which requires a single-threaded process (processes.h). `connect` is Client::connect or a substitute.
Result<RowsBenchReport> runRowsBench(
    const RowsBenchOptions& options,
    const std::function<Result<std::unique_ptr<Client>>(const ClientOptions&)>& connect);

/// Human-readable, aligned lines.
std::string formatText(const RowsBenchReport& report);
/// One JSON object on one line.
std::string formatJson(const RowsBenchReport& report);

}  // namespace psd

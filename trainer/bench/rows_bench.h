#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "common/status/status.h"
#include "trainer/client/client.h"

namespace psd {

/// What of embedding tables is measured.
struct RowsBenchOptions {
  ClientOptions client;
  uint64_t ids = 100'000;     ///< of one pull or push, those of all tables together
  uint32_t dim = 32;          ///< of every table
  uint32_t tables = 1;        ///< which share rows and ids evenly
  uint64_t rows = 1'000'000;  ///< of all tables together, there before anything is measured
  double skew = 0;            ///< ids are drawn by Zipf's law with this exponent; 0: evenly
  bool create = false;        ///< pushes make rows, until `rows` are there; nothing is pulled
  uint32_t creators = 0;      ///< further trainers that make rows meanwhile, each a process
  double seconds = 2;         ///< how long to measure; not of `create`
};

/// Times are seconds, rows are different ones.
struct RowsBenchReport {
  struct Calls {
    uint64_t count = 0;
    double median = 0, p99 = 0, p999 = 0, longest = 0;  ///< of one
    double rowsPerSecond = 0;                           ///< in the median
  };
  RowsBenchOptions options;
  double rows = 0;  ///< of one pull or push, in the mean
  double plan = 0;  ///< median of RowBatch::make(), which is in no other time
  Calls pulls;      ///< none of `create`
  Calls pushes;     ///< until they are applied
  std::string policy, device;
  std::string rowTransport;  ///< as JoinInfo has it
};

/// Pulls and pushes rows in turns, with ids that are drawn anew for each. Loads a running daemon, which must
/// hold no other model: the model is tables alone, gradients are zeros. Blocks. With creators processes are
/// forked, so the process must have one thread then (processes.h). `connect` is Client::connect, or what
/// stands in for it.
Result<RowsBenchReport> runRowsBench(
    const RowsBenchOptions& options,
    const std::function<Result<std::unique_ptr<Client>>(const ClientOptions&)>& connect);

/// A few aligned lines for people.
std::string formatText(const RowsBenchReport& report);
/// One JSON object on one line.
std::string formatJson(const RowsBenchReport& report);

}  // namespace psd

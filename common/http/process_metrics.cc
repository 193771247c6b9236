#include "common/http/process_metrics.h"

#include "common/os/host.h"

namespace psd {

void writeProcessMetrics(MetricWriter& out, uint64_t openDescriptors) {
  using Type = MetricWriter::Type;
  const ProcessUse use = processUse();
  out.one("process_cpu_seconds_total", Type::counter, "CPU time of all threads, in user and system mode",
          use.cpuSeconds);
  out.one("process_resident_memory_bytes", Type::gauge, "memory of the process", residentBytes());
  out.one("process_open_fds", Type::gauge, "open file descriptors", openDescriptors);
  out.one("process_max_fds", Type::gauge, "maximum number of open file descriptors", use.descriptorsMax);
  out.one("process_start_time_seconds", Type::gauge, "start of the process, in Unix time", use.startTime);
}

}  // namespace psd

#include "common/os/host.h"

#include <ctime>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>

#include <sys/resource.h>
#include <unistd.h>

namespace psd {
namespace {

/// The machine's boot, in Unix time; 0 if unknown.
double bootTime() {
  std::ifstream stat("/proc/stat");
  double time = 0;
  for (std::string key; stat >> key; stat.ignore(std::numeric_limits<std::streamsize>::max(), '\n')) {
    if (key == "btime") return stat >> time ? time : 0;
  }
  return 0;
}

/// Seconds from the machine's boot to the start of this process.
double startAfterBoot() {
  constexpr int kFieldsBefore = 19;  // between the program's name, in parentheses, and the start
  std::string line, skipped;
  std::ifstream stat("/proc/self/stat");
  std::getline(stat, line);
  std::istringstream fields(line.substr(line.rfind(')') + 1));
  double ticks = 0;
  for (int i = 0; i < kFieldsBefore; i++) fields >> skipped;
  fields >> ticks;
  return ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}

}  // namespace

std::string hostName() {
  char name[256] = "";
  return gethostname(name, sizeof name - 1) == 0 ? name : "unknown";
}

uint64_t residentBytes() {
  std::ifstream statm("/proc/self/statm");
  uint64_t totalPages = 0, residentPages = 0;
  statm >> totalPages >> residentPages;
  return statm ? residentPages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) : 0;
}

ProcessUse processUse() {
  ProcessUse use;
  timespec cpu{};
  if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu) == 0) {
    use.cpuSeconds = static_cast<double>(cpu.tv_sec) + static_cast<double>(cpu.tv_nsec) * 1e-9;
  }
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) use.descriptorsMax = limit.rlim_cur;
  use.startTime = bootTime() + startAfterBoot();
  return use;
}

std::optional<uint64_t> openDescriptorsOf(uint32_t pid) {
  std::error_code error;
  uint64_t count = 0;
  std::filesystem::directory_iterator each("/proc/" + std::to_string(pid) + "/fd", error);
  for (; !error && each != std::filesystem::directory_iterator(); each.increment(error)) count++;
  if (error) return {};
  const bool itself = pid == static_cast<uint32_t>(getpid());
  return itself ? count - 1 : count;  // without that of the iterator
}

uint64_t openDescriptors() { return openDescriptorsOf(static_cast<uint32_t>(getpid())).value_or(0); }

}  // namespace psd

#include "common/os/host.h"

#include <fstream>

#include <unistd.h>

namespace psd {

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

}  // namespace psd

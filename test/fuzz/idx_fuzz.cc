// An IDX file of images or labels, plain or compressed.

#include <sys/mman.h>
#include <unistd.h>

#include "test/fuzz/fuzz_list.h"
#include "test/support/gzip.h"
#include "trainer/dataset/idx_file.h"

namespace psd::fuzz {
namespace {
namespace idx_fuzz {

/// Input: the rank (1 byte), the file.
void run(Bytes input) {
  if (input.empty()) return;
  const uint8_t rank = static_cast<uint8_t>(input[0]) % 4 + 1;
  const Bytes content = input.subspan(1);
  const int fd = memfd_create("idx", MFD_CLOEXEC);
  require(fd >= 0, "a memory file can be created");
  require(write(fd, content.data(), content.size()) == static_cast<ssize_t>(content.size()),
          "the memory file can be written");
  const auto file = readIdxFile("/proc/self/fd/" + std::to_string(fd), rank);
  close(fd);
  if (!file.ok()) return;
  require(file->dimensions.size() == rank, "the rank is the requested one");
  uint64_t bytes = 1;
  for (uint32_t extent : file->dimensions) bytes *= extent;
  require(file->bytes.size() == bytes, "the number of bytes matches the dimensions");
}

std::vector<std::string> seeds() {
  const std::string labels("\0\0\x08\x01\0\0\0\x03\x01\x02\x03", 11);
  const std::string images("\0\0\x08\x03\0\0\0\x01\0\0\0\x02\0\0\0\x02pixl", 20);
  return {'\0' + labels, '\2' + images, '\0' + testing::gzip(labels), '\2' + testing::gzip(images)};
}

}  // namespace idx_fuzz
}  // namespace

const FuzzTarget kIdxTarget{"idx", "an IDX file, plain or compressed", idx_fuzz::run, idx_fuzz::seeds};

}  // namespace psd::fuzz

// Files of samples.

#include <sys/mman.h>
#include <unistd.h>

#include "test/fuzz/fuzz_list.h"
#include "trainer/dataset/stored_columns.h"

namespace psd::fuzz {
namespace {
namespace columns_fuzz {

void checkColumns(const StoredColumns& columns) {
  require(columns.rows > 0 && !columns.columns.empty(), "there are samples");
  for (const StoredColumn& each : columns.columns) {
    uint64_t bytes = columns.rows * elementBytes(each.column.type);
    for (const uint64_t extent : each.column.shape) bytes *= extent;
    require(each.bytes.size() == bytes, "the number of bytes matches type and shape");
    uint32_t sum = 0;
    for (const std::byte byte : each.bytes) sum += static_cast<uint32_t>(byte);
    require(sum <= each.bytes.size() * 255, "all of them can be read");
  }
}

void readFile(char kind, Bytes content) {
  const int fd = memfd_create("columns", MFD_CLOEXEC);
  require(fd >= 0, "a memory file can be created");
  require(write(fd, content.data(), content.size()) == static_cast<ssize_t>(content.size()),
          "the memory file can be written");
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  const auto columns = kind == 's'   ? readSafetensorsColumns(path)
                       : kind == 'n' ? readNpyColumns({path})
                                     : readCsvColumns(path);
  close(fd);
  if (columns.ok()) checkColumns(*columns);
}

/// Input: the reader (1 byte), the file.
void run(Bytes input) {
  if (input.empty()) return;
  readFile(static_cast<char>(input[0]), input.subspan(1));
}

std::vector<std::string> seeds() {
  const std::string header = R"({"x":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]}})";
  const std::string dict = "{'descr': '<i4', 'fortran_order': False, 'shape': (2,), }\n";
  return {std::string("s") + static_cast<char>(header.size()) + std::string(7, '\0') + header + "12345678",
          std::string("n\x93NUMPY\x01\0", 9) + static_cast<char>(dict.size()) + '\0' + dict + "12345678",
          "cx,\"y\" f32,z i64\n1,-2.5e3,7\n3,4,5\n"};
}

}  // namespace columns_fuzz
}  // namespace

const FuzzTarget kColumnsTarget{"columns",
                                "files of samples: safetensors, arrays of numpy, numbers with commas",
                                columns_fuzz::run, columns_fuzz::seeds};

}  // namespace psd::fuzz

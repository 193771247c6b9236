// A status document, and the table made from it.

#include "common/config/json_file.h"
#include "server/status/status_json.h"
#include "server/status/status_table.h"
#include "test/fuzz/fuzz_list.h"
#include "test/support/sample_status.h"

namespace psd::fuzz {
namespace {
namespace status_fuzz {

void run(Bytes input) {
  const auto parsed = parseJson(textOf(input), "input");
  if (!parsed.ok()) return;
  const auto status = readStatus(*parsed, "the status");
  if (!status.ok()) {
    require(status.message().find('\n') == std::string::npos, "an error is one line");
    return;
  }
  require(!statusTable(*status).empty(), "a status has a table");
  const auto again = readStatus(statusJson(*status), "the status");
  require(again.ok(), "a parsed status can be printed and parsed");
  require(statusJson(*again) == statusJson(*status), "a round trip preserves the status");
}

std::vector<std::string> seeds() {
  return {jsonText(statusJson(DaemonStatus())), jsonText(statusJson(testing::sampleStatus()))};
}

}  // namespace status_fuzz
}  // namespace

const FuzzTarget kStatusTarget{"status", "a daemon's status document", status_fuzz::run, status_fuzz::seeds};

}  // namespace psd::fuzz

#include "server/daemon/operator_commands.h"
#include "test/support/catch.h"
#include "test/support/local_server.h"

namespace psd {
namespace {

using Catch::Matchers::Contains;
using Json = nlohmann::ordered_json;

/// A status with a log, of which `log` says how it is.
std::string textWith(const Json& log) {
  static const Json kStatus = testing::LocalServer(Json::object()).status();
  Json status = kStatus;
  status["durability"] = {{"type", "log"},    {"path", "saved"},          {"last_checkpoint", nullptr},
                          {"checkpoints", 0}, {"checkpoint_failures", 0}, {"error", ""},
                          {"log", log}};
  return formatStatus(status);
}

TEST_CASE("the status for people tells of a log that is broken, and of one that is not") {
  CHECK_THAT(
      textWith({{"error", "'saved/log-1': No space left on device"}, {"lost", 17}}),
      Contains("durability log in saved, no checkpoint yet\n"
               "           LOG BROKEN: 'saved/log-1': No space left on device, 17 updates not written\n"));
  CHECK_THAT(textWith({{"error", ""}, {"lost", 17}}), Contains("no checkpoint yet\n") && !Contains("BROKEN"));
}

TEST_CASE("the status for people tells who waits, in what and for whom") {
  Json status = testing::LocalServer(Json::object()).status();
  Json waiting = {{"group", "others"}, {"policy", "sync"}, {"what", "round 826"}, {"joins", 0}};
  waiting["ranks"] = {0};
  waiting["for"] = Json::array({{{"rank", 1}, {"ms", 3200}}});
  status["waiting"] = Json::array({waiting});
  CHECK_THAT(formatStatus(status),
             Contains("waiting    rank 0 waits in round 826 (sync of others) for rank 1, since 3.2 s\n"));
  waiting["ranks"] = {0, 2};
  waiting["joins"] = 2;
  status["waiting"] = Json::array({waiting});
  CHECK_THAT(formatStatus(status),
             Contains("ranks 0, 2 wait in round 826 (sync of others) for rank 1, since 3.2 s; 2 to join\n"));
}

}  // namespace
}  // namespace psd

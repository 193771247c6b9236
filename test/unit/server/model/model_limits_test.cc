#include <string>

#include "server/config/daemon_config.h"
#include "server/model/make_store.h"
#include "server/store/rows/row_table.h"
#include "server/store/rows/row_turnover.h"
#include "test/support/catch.h"

namespace psd::model_limits_test {
namespace {

DaemonConfig configWith(const std::string& limits) {
  auto loaded = readDaemonConfig(nlohmann::ordered_json::parse(
      R"({"listen": ["unix:///none"], "shards": 2, "row_shards": 2, "limits": )" + limits + "}"));
  PSD_REQUIRE_OK(loaded);
  return loaded->config;
}

TEST_CASE("a model's tensors and shards count against limits.model_bytes") {
  const ModelSpec model{"m", {{"w", DType::f32, {4}}}, {}};
  constexpr uint64_t kAll = 4 * sizeof(float) + 512 + 2 * 2048;
  PSD_REQUIRE_OK(checkLimits(configWith(R"({"model_bytes": )" + std::to_string(kAll) + "}"), model, 1));
  PSD_REQUIRE_OK(checkLimits(configWith(R"({"model_bytes": 0})"), model, 1));
  const Status refused =
      checkLimits(configWith(R"({"model_bytes": )" + std::to_string(kAll - 1) + "}"), model, 1);
  CHECK(refused.error().code == ErrorCode::overloaded);
  CHECK(refused.message() ==
        "the model takes 4624 bytes: 16 of weights, 4608 for its 1 tensors and 2 shards; "
        "limits.model_bytes is 4623");
}

TEST_CASE("a model's tables and row shards count against limits.table_bytes before they have a row") {
  const ModelSpec model{"m", {}, {{"a", 4, {}}, {"b", 2, {}}}};
  constexpr uint64_t kAll = 2 * (2 * RowTable::kEmptyBytes + kEmptyRowShardBytes);
  PSD_REQUIRE_OK(checkLimits(configWith(R"({"table_bytes": )" + std::to_string(kAll) + "}"), model, 1));
  const Status refused =
      checkLimits(configWith(R"({"table_bytes": )" + std::to_string(kAll - 1) + "}"), model, 1);
  CHECK(refused.error().code == ErrorCode::overloaded);
  CHECK(refused.message().find("limits.table_bytes is " + std::to_string(kAll - 1) +
                               ": raise it, or lower row_shards") != std::string::npos);
}

}  // namespace
}  // namespace psd::model_limits_test
